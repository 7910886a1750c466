"""How much memory the proxy's process tree takes."""

import contextlib
from dataclasses import astuple, dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes, summed over a process and all its descendants."""

    rss_bytes: int = 0
    rss_anon_bytes: int = 0
    rss_file_bytes: int = 0
    vms_bytes: int = 0


_root: int | None = None


def belong_to(root: int) -> None:
    """From now on this process is part of the tree of process `root`, its parent."""
    global _root
    _root = root


def of_tree() -> Memory:
    """Memory of the proxy's whole tree: with the parent that keeps its socket, where there is one.

    Processes that just ended count nothing.
    """
    root = psutil.Process(_root)
    return _sum([root, *root.children(recursive=True)])


def of_worker() -> Memory:
    """Memory of this process and its helpers, and of its parent; without another worker that may be there."""
    own = psutil.Process()
    parent = [] if _root is None else [psutil.Process(_root)]
    return _sum([*parent, own, *own.children(recursive=True)])


def _sum(processes: list[psutil.Process]) -> Memory:
    found = [Memory()]
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            found.append(_of_process(process))
    return Memory(*map(sum, zip(*map(astuple, found), strict=True)))


def _of_process(process: psutil.Process) -> Memory:
    info = process.memory_info()
    in_files = getattr(info, "shared", 0)  # Elsewhere than on Linux anonymous memory is not told apart.
    return Memory(info.rss, info.rss - in_files, in_files, info.vms)
