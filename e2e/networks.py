"""How pods reach this machine."""

from toolchain.kubernetes import lifecycle
from toolchain.kubernetes.records import Record

_GATEWAY = "{{range .IPAM.Config}}{{.Gateway}} {{end}}"


def address_of_this_machine(record: Record) -> str:
    """Its IPv4 address on the network of the cluster's nodes, which leads to nobody else."""
    docker = lifecycle.docker_of(record)
    addresses = docker("network", "inspect", "kind", "--format", _GATEWAY).split()
    return next(address for address in addresses if ":" not in address)
