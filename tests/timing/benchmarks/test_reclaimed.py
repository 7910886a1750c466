"""Sessions by the thousand come and are reclaimed, twice: memory and the store's file are back near the start.

`python -m benchmarks sessions_reclaimed --reclaimed 100000` is the long form.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SESSIONS = 10_000
LEFT_MB = 5
"""Of the store, however few there were."""
LONGEST = 1200
"""Seconds for both crowds."""


@pytest.mark.timeout(LONGEST)
def test_memory_and_the_stores_file_come_back_after_many_sessions(tmp_path: Path) -> None:
    rig = [sys.executable, "-m", "benchmarks", "sessions_reclaimed", "--pairs", "1", "--reclaimed", str(SESSIONS)]
    done = subprocess.run([*rig, "--results", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "sessions_reclaimed.json").read_text())
    seen = {name.removeprefix(f"reclaimed_{SESSIONS}_"): each["median"] for name, each in record["figures"].items()}
    assert seen["not_dumped"] == 0
    assert seen["rss_after_vs_before_mb"] < 80, "caches of 64 MiB may be full by now"
    assert seen["rss_again_vs_after_mb"] < 20
    assert seen["store_after_mb"] < LEFT_MB + 0.08 * seen["store_with_all_mb"]
