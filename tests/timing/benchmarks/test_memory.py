"""Memory of a process tree is that of all its processes."""

import sys
from pathlib import Path

from benchmarks.rigs import processes
from benchmarks.rigs.processes import Running

CHILD = "held = bytearray(60_000_000); print('up', flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {CHILD!r}], stdin=subprocess.PIPE).wait()"


def test_a_tree_counts_what_its_children_hold(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Running([sys.executable, "-c", PARENT], log=log) as running:
        running.wait_until(lambda: "up" in log.read_text())
        assert processes.memory(running.pid).rss > 60_000_000
