"""CPU of a process tree is that of all its processes, ended ones included; and what was started is ended."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.rigs import processes
from benchmarks.rigs.processes import Running, StartFailed
from tests.waiting import PATIENCE, until

PARENT = """
import subprocess, sys, time
burn = "import time\\nwhile time.process_time() < 0.5: pass"
subprocess.run([sys.executable, "-c", burn])
child = subprocess.Popen([sys.executable, "-c", "print('up', flush=True); input()"],
                         stdin=subprocess.PIPE)
time.sleep(60)
"""


def test_a_tree_counts_children_that_run_and_children_that_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Running([sys.executable, "-c", PARENT], log=log) as running:
        running.wait_until(lambda: "up" in log.read_text())
        assert len(processes.tree(running.pid)) == 2
        assert 0.5 <= processes.cpu_seconds(running.pid) < 5
        pids = list(processes.tree(running.pid))
    until(lambda: not any(Path(f"/proc/{pid}/exe").exists() for pid in pids))


def test_a_process_that_ends_before_it_serves_says_why(tmp_path: Path) -> None:
    with (
        Running([sys.executable, "-c", "raise SystemExit('no such model')"], log=tmp_path / "log") as running,
        pytest.raises(StartFailed, match="no such model"),
    ):
        running.wait_until(lambda: False)


BENCH = """
import sys
from pathlib import Path
from benchmarks.rigs.processes import Running, stop_as_by_ctrl_c
stop_as_by_ctrl_c()
with Running([sys.executable, "-c", "import time; time.sleep(60)"], log=Path(sys.argv[1])) as running:
    print(running.pid, flush=True)
    running.wait_until(lambda: False)
"""


@pytest.mark.parametrize("told", [signal.SIGTERM, signal.SIGINT])
def test_told_to_stop_it_ends_what_it_started(tmp_path: Path, told: signal.Signals) -> None:
    """In a shell's background job, too, which begins with SIGINT ignored.

    It waits as benchmarks do: one long `time.sleep` misses a signal that comes just before it begins.
    """
    line = [sys.executable, "-c", BENCH, str(tmp_path / "log")]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, preexec_fn=_ignore_sigint) as bench:
        assert bench.stdout is not None
        started = int(bench.stdout.readline())
        bench.send_signal(told)
        bench.wait(timeout=PATIENCE)
    with pytest.raises(ProcessLookupError):
        os.kill(started, 0)


def _ignore_sigint() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
