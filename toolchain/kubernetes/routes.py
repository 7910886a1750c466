"""The host's `unreachable` routes for a cluster's addresses, without which no cluster is made.

Until kube-proxy has its rules, and after it has lost them, a packet for a cluster's address follows the default route
of the node and then of this machine, to whoever owns that address out there. With the routes it ends here.
"""

import json
import os
from collections.abc import Sequence
from ipaddress import IPv4Network

from toolchain.kubernetes import commands
from toolchain.kubernetes.failures import ClusterError, CommandFailed


def missing(wanted: Sequence[IPv4Network], shown: str) -> list[IPv4Network]:
    """Those of `wanted` that are not unreachable yet, by what `ip -json -details route` showed.

    Raises ClusterError where a range is used for something else here.
    """
    there = {_network(route["dst"]): route for route in json.loads(shown or "[]") if route["dst"] != "default"}
    lacking = []
    for network in wanted:
        for other, route in there.items():
            if route.get("type") != "unreachable" and other.overlaps(network):
                raise ClusterError(
                    f"{network} is in use on this machine: it has a route to {other}"
                    f" (dev {route.get('dev', '?')}). Choose another range: --pod-range, --service-range"
                )
        if not any(network.subnet_of(other) for other in there):
            lacking.append(network)
    return lacking


def _network(written: str) -> IPv4Network:
    return IPv4Network(written, strict=False)


def shown() -> str:
    return commands.run("ip", "-4", "-json", "-details", "route", "show")


def add(networks: Sequence[IPv4Network]) -> None:
    """Raises ClusterError where that is not allowed."""
    for network in networks:
        _as_root("add", network)


def remove(networks: Sequence[IPv4Network]) -> None:
    """Those that are still there."""
    there = {_network(route["dst"]) for route in json.loads(shown() or "[]") if route.get("type") == "unreachable"}
    for network in networks:
        if network in there:
            _as_root("del", network)


def _as_root(verb: str, network: IPv4Network) -> None:
    line = ["ip", "route", verb, "unreachable", str(network)]
    try:
        commands.run(*([] if os.geteuid() == 0 else ["sudo", "--non-interactive"]), *line)
    except CommandFailed as error:
        raise ClusterError(
            f"`{' '.join(line)}` failed. No cluster comes or goes without its addresses being unreachable from this"
            f" machine, and that takes root. You may run it yourself with sudo, and then this command again.\n{error}"
        ) from None
