"""The command, as somebody types it."""

import subprocess
import sys

from tests.waiting import PATIENCE


def test_without_a_cluster_it_says_so_and_ends() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rolloutfleet_operator.cli", "run", "--listen=127.0.0.1:0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", "PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 2
    assert "no cluster" in done.stderr and "Traceback" not in done.stderr
