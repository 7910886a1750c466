"""Three updates and two evaluations of GRPO by TRL in two processes, in its own environment: `make trl`, against the
real engine and one proxy."""

import json
import subprocess
from pathlib import Path

import pytest
from examples.real_fleet import command_of, environment_of
from examples.trainers.trl.__main__ import CHECKED, python_of_trl
from tests.engine.sglang.places import Installed
from tests.engine.test_tiny_rl import fleet_file as fleet_file
from tests.engine.test_tiny_rl import proxy as proxy
from tests.fleets import ProxyProcess
from tests.paths import ROOT
from tests.waiting import SGLANG_START

PROCESSES = 2
ROWS, TURNS, TOKENS = 32 // PROCESSES, 2, 16
"""Rows of one process."""
FAILED = ROWS // 8
EVALUATED = 2 * ROWS // 4
"""Two of each group of eight, after the second update and at the end."""


@pytest.mark.timeout(3 * SGLANG_START)
def test_trl_trains_on_what_is_exported_and_failed_agents_teach_nothing(
    proxy: ProxyProcess, fleet_file: Path, sglang: Installed, tmp_path: Path
) -> None:
    results = tmp_path / "results.json"
    words = ["--fleet", str(fleet_file), "--weights", str(tmp_path / "weights"), "--results", str(results)]
    words += ["--updates", str(CHECKED), "--fail", "--evaluate", "2"]
    proxy.start()
    try:
        done = subprocess.run(
            command_of(python_of_trl(), "examples.trainers.trl.run", words, processes=PROCESSES),
            cwd=ROOT,
            env=environment_of(sglang),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * SGLANG_START,
        )
    finally:
        proxy.stop()
    assert done.returncode == 0, done.stdout
    found = json.loads(results.read_text())
    assert found["evaluated"] == EVALUATED
    # What no engine reads any more is removed.
    assert {each.name for each in (tmp_path / "weights").iterdir()} == {"2", "3"}
    steps = found["steps"]
    assert [step["version"] for step in steps] == [1, 2, 3]
    for step in steps:
        assert {name: step[name] for name in ("rows", "equal", "rewards", "failed", "idle")} == {
            **dict.fromkeys(("rows", "equal", "rewards"), ROWS),
            **dict.fromkeys(("failed", "idle"), FAILED),
        }
        # An answer may end early, by chance.
        assert 0.9 * (ROWS - FAILED) * TURNS * TOKENS < step["tokens"] <= (ROWS - FAILED) * TURNS * TOKENS
        assert step["furthest"] < 1e-4
