"""Connects the pods of all nodes: one such process on each node, in a pod on the node's own network.

It writes the configuration of containerd's network plug-ins (a pair of interfaces for a pod, addresses from the node's
part of the pods' range), and keeps a route to every other node's part. Packets that leave the
cluster get the node's address.

It runs with the standard library of its image alone.
"""

import json
import os
import ssl
import subprocess
import time
import urllib.request
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
CONFIGURATION = Path("/etc/cni/net.d/10-pod-network.conflist")
SECONDS_UNTIL_CONFIGURED = 0.5
SECONDS_BETWEEN_LOOKS = 5.0


def configuration(pods: IPv4Network) -> str:
    """What containerd's plug-ins read (https://www.cni.dev/docs/spec)."""
    addresses = {
        "type": "host-local",
        "dataDir": "/run/pod-addresses",
        "ranges": [[{"subnet": str(pods)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugins = [
        {"type": "ptp", "ipMasq": False, "ipam": addresses},
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ]
    return json.dumps({"cniVersion": "0.4.0", "name": "pod-network", "plugins": plugins})


def routes(nodes: list[dict[str, Any]], *, besides: str) -> dict[IPv4Network, str]:
    """The pods of each other node, and that node's address."""
    found = {}
    for node in nodes:
        pods = node["spec"].get("podCIDR")
        inside = [each["address"] for each in node["status"].get("addresses", []) if each["type"] == "InternalIP"]
        if node["metadata"]["name"] != besides and pods and inside:
            found[IPv4Network(pods)] = inside[0]
    return found


def pods_of(nodes: list[dict[str, Any]], name: str) -> IPv4Network | None:
    found = (node["spec"].get("podCIDR") for node in nodes if node["metadata"]["name"] == name)
    return next((IPv4Network(pods) for pods in found if pods), None)


class Api:
    """The API server, asked directly: its cluster address works only once this node's kube-proxy does."""

    def __init__(self, direct: str, cluster_address: str) -> None:
        self._direct = direct
        self._cluster_address = cluster_address
        self._trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))

    def nodes(self) -> list[dict[str, Any]]:
        token = (ACCOUNT / "token").read_text()
        request = urllib.request.Request(
            f"https://{self._direct}/api/v1/nodes", headers={"Authorization": f"Bearer {token}"}
        )
        with urllib.request.urlopen(request, context=self._trusted, timeout=10) as reply:
            items: list[dict[str, Any]] = json.load(reply)["items"]
        return items

    def check_cluster_address(self) -> None:
        address = f"https://{self._cluster_address}/readyz"
        urllib.request.urlopen(address, context=self._trusted, timeout=2).close()


def connect(api: Api, *, me: str, all_pods: IPv4Network) -> None:
    nodes = api.nodes()
    for pods, address in routes(nodes, besides=me).items():
        subprocess.run(["ip", "route", "replace", str(pods), "via", address], check=True)
    mine = pods_of(nodes, me)
    if mine is None:
        return
    hide_behind_the_node(mine, all_pods)
    if not CONFIGURATION.exists():
        # With this file the node turns Ready and pods come, which before kube-proxy works find no service.
        api.check_cluster_address()
    if not CONFIGURATION.exists() or CONFIGURATION.read_text() != configuration(mine):
        unfinished = CONFIGURATION.with_suffix(".unfinished")
        unfinished.write_text(configuration(mine))
        unfinished.rename(CONFIGURATION)
        print(f"pods of this node: {mine}", flush=True)


def hide_behind_the_node(mine: IPv4Network, all_pods: IPv4Network) -> None:
    rule = ["POSTROUTING", "-s", str(mine), "!", "-d", str(all_pods), "-j", "MASQUERADE"]
    tables = ["iptables", "--wait", "--table", "nat"]
    if subprocess.run([*tables, "--check", *rule], capture_output=True).returncode:
        subprocess.run([*tables, "--append", *rule], check=True)


def main() -> None:
    api = Api(os.environ["CONTROL_PLANE_ENDPOINT"], os.environ["KUBERNETES_SERVICE_HOST"])
    me, all_pods = os.environ["NODE_NAME"], IPv4Network(os.environ["POD_RANGE"])
    while True:
        try:
            connect(api, me=me, all_pods=all_pods)
        except (OSError, subprocess.CalledProcessError, KeyError, ValueError) as error:
            print(f"again in a moment: {error!r}", flush=True)
        time.sleep(SECONDS_BETWEEN_LOOKS if CONFIGURATION.exists() else SECONDS_UNTIL_CONFIGURED)


if __name__ == "__main__":
    main()
