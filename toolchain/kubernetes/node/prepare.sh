# Run inside the node image while it is built: which units start, and that nothing is left of the packages' own set-up.
set -eu

rm -f /usr/sbin/policy-rc.d /etc/cni/net.d/*
systemctl mask \
    getty@tty1.service console-getty.service getty.target \
    systemd-binfmt.service systemd-logind.service systemd-udevd.service systemd-timesyncd.service \
    systemd-modules-load.service systemd-update-utmp.service proc-sys-fs-binfmt_misc.automount \
    apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
systemctl enable containerd.service kubelet.service
systemctl set-default multi-user.target
mkdir -p /opt/cni /etc/kubernetes/manifests
ln -sfn /usr/lib/cni /opt/cni/bin
