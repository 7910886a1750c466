"""The processes that the kernel has killed for want of memory, as the cgroup of this one counts them."""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Final

_ROOT: Final = "/sys/fs/cgroup"


def files(lines: Iterable[str], root: str = _ROOT) -> Iterator[str]:
    """The files that may have the count, by lines of /proc/self/cgroup: of cgroup v2, then of v1.

    In a container the path may be the host's, and the container's own cgroup be mounted at the root.
    """
    for line in lines:
        match line.strip().split(":", 2):
            case [_, "", path]:
                yield from (f"{root}{path.rstrip('/')}/memory.events", f"{root}/memory.events")
            case [_, controllers, path] if "memory" in controllers.split(","):
                yield from (f"{root}/memory{path.rstrip('/')}/memory.oom_control", f"{root}/memory/memory.oom_control")


def parse(text: str) -> int | None:
    """The count of such a file."""
    for line in text.splitlines():
        match line.split():
            case ["oom_kill", count] if count.isdigit():
                return int(count)
    return None


def count() -> int:
    """How many there have been; 0 where that can't be known."""
    for file in files(_read("/proc/self/cgroup").splitlines()):
        found = parse(_read(file))
        if found is not None:
            return found
    return 0


def _read(file: str) -> str:
    with contextlib.suppress(OSError), open(file, encoding="utf-8", errors="replace") as opened:  # noqa: PTH123 (small)
        return opened.read()
    return ""
