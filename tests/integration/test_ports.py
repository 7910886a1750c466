"""Ports for servers that tests start: no other process has them, however long a server takes to listen."""

import subprocess
import sys

from tests.processes import BLOCK, PORTS, free_ports

MANY = BLOCK + 10
"""More than a process takes at once."""
OTHER = f"from tests.processes import free_ports; print(*free_ports({MANY}), flush=True); input()"


def test_no_two_processes_are_given_the_same_port() -> None:
    others = [
        subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    given = free_ports(MANY)
    assert set(given) <= set(PORTS)
    for other in others:
        assert other.stdout is not None
        given += map(int, other.stdout.readline().split())
    for other in others:
        other.communicate("\n")
    assert len(given) == len(set(given)) == 4 * MANY
