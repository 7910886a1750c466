"""Ends a fleet's processes when the process that runs the fleet is gone, however it went.

Run as a script of its own. On its input it is told of process groups, `+123` and `-123`; the input ends
when the other side of the pipe does, by closing it or by dying, and then what is left is told to stop
and, after a grace, killed. Only then it ends, and so lets go of the folder's lock: what was killed holds its port
until the kernel has cleared it away. It imports little, so that it is up and small.
"""

import contextlib
import os
import signal
import sys
import time

GRACE = 5.0
KILLED_WITHIN = 3.0
"""Seconds that what was killed may take to be gone. Longer than that, only what nobody reaps is there."""
TICK = 0.05


def main() -> None:
    groups = read_groups()
    tell(groups, signal.SIGTERM)
    wait_until_gone(groups, GRACE)
    for group in groups:
        kill_group(group)
    wait_until_gone(groups, KILLED_WITHIN)


def read_groups() -> set[int]:
    """The groups that are left when the input ends."""
    groups: set[int] = set()
    for line in sys.stdin:
        number = int(line[1:])
        if line.startswith("+"):
            groups.add(number)
        else:
            groups.discard(number)
    return groups


def tell(groups: set[int], number: int) -> None:
    # Only the group's leader is told: it knows how its own children are stopped.
    for group in groups:
        with contextlib.suppress(ProcessLookupError):
            os.kill(group, number)


def wait_until_gone(groups: set[int], at_most: float) -> None:
    deadline = time.monotonic() + at_most
    while any(is_there(group) for group in groups) and time.monotonic() < deadline:
        time.sleep(TICK)


def is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
