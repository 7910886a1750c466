"""The ports of a local fleet: chosen once and kept in a file, since the addresses of open sessions hold them."""

import json
import random
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

import psutil

from rolloutfleet_operator.local.site import LOOPBACK, LocalFleetError, write_whole

PORTS = range(20_000, 30_000)
"""Below the range that outgoing connections take theirs from, so that none sits on a dead child's port
when it is started again."""


class Claims:
    """Ports that other fleets leave alone while nothing listens on them: its process is not up yet, or is down.

    Each is held for UDP, which nothing here speaks. The kernel lets go of it when this process ends, however it ends.
    """

    def __init__(self) -> None:
        self._holders: list[socket.socket] = []

    def take(self, port: int) -> bool:
        holder = socket.socket(type=socket.SOCK_DGRAM)
        try:
            holder.bind((LOOPBACK, port))
        except OSError:
            holder.close()
            return False
        self._holders.append(holder)
        return True

    def release(self) -> None:
        while self._holders:
            self._holders.pop().close()


def choose_ports(
    file: Path, names: Iterable[str], rng: random.Random, *, renew: bool, claims: Claims
) -> dict[str, int]:
    """A port for each name: the one in `file`, else a new one. Keeps the choice in `file`.

    A kept port is used where it can't be claimed, too: whoever uses it for UDP is not in the way.
    A kept port that another program holds is replaced where `renew` says so. Raises LocalFleetError where it doesn't,
    which names the port and, where it can be seen, who holds it; nothing is written then.
    """
    kept = _kept(file)
    chosen: dict[str, int] = {}
    for name in names:
        port = kept.get(name)
        if port is not None and not is_free(port):
            if not renew:
                raise _held(name, port)
            port = None
        if port is None or port in chosen.values():
            port = _new_port({*kept.values(), *chosen.values()}, rng, claims)
        else:
            claims.take(port)
        chosen[name] = port
    write_whole(file, json.dumps({**kept, **chosen}, indent=1))
    return chosen


def _held(name: str, port: int) -> LocalFleetError:
    by = holder(port)
    return LocalFleetError(
        f"{name} had port {port}, which {by or 'another program'} holds now; end that, or give --new-ports for a new "
        "one (the base_url of each open session on that port is void then)"
    )


def holder(port: int) -> str | None:
    """The process that holds a port, in words; None where this user can't see it."""
    try:
        found = {each.pid for each in psutil.net_connections("tcp") if each.laddr and each.laddr.port == port}
        pid = next(filter(None, found), None)
        return None if pid is None else f"process {pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return None


def _kept(file: Path) -> Mapping[str, int]:
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): port for name, port in kept.items() if isinstance(port, int)}


def _new_port(taken: set[int], rng: random.Random, claims: Claims) -> int:
    for port in rng.sample(PORTS, 1000):
        if port not in taken and is_free(port) and claims.take(port):
            return port
    raise LocalFleetError(f"no free port on {LOOPBACK} between {PORTS.start} and {PORTS.stop}")


def is_free(port: int) -> bool:
    """Whether a server could listen on it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True
