# Run in a container of the node image: puts /images.tar into containerd's store. Not unpacked: an overlay can't be mounted on
# an overlay, and the node does it when an image is first used.
set -eu

containerd &
containerd=$!
for _ in $(seq 100); do
    ctr version >/dev/null 2>&1 && break
    sleep 0.1
done
ctr --namespace k8s.io images import --all-platforms --no-unpack --digests /images.tar
kill "$containerd"
wait "$containerd" || true
rm -rf /run/containerd
