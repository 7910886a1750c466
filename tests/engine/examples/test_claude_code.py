"""`make claude-code`: a batch of Claude Code rollouts, in the environment where PyTorch is."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples.claude_code.agents import GROUP
from examples.claude_code.tasks import TASKS
from tests.engine.sglang.places import Installed
from tests.paths import ROOT
from tests.waiting import PATIENCE, SGLANG_START

LOOK = """
import json, sys, torch
batch = torch.load(sys.argv[1])
print(json.dumps({"rewards": float(batch["rewards"].sum()), "rows": len(batch["input_ids"])}))
"""


@pytest.mark.timeout(SGLANG_START + PATIENCE)
def test_one_command_makes_a_batch_of_rollouts_with_their_rewards(sglang: Installed, tmp_path: Path) -> None:
    file = tmp_path / "batch.pt"
    line = [sys.executable, "-m", "examples.claude_code", "--output", str(file)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=SGLANG_START, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = {task.name: re.findall(rf"^{task.name} +\d+ +([\d.]+)", done.stdout, re.MULTILINE) for task in TASKS}
    rewards = {name: sorted(rows) for name, rows in shown.items()}
    assert rewards == {
        "fix-greeting": ["1.00"] * GROUP,
        "count-lines": ["1.00"] * GROUP,
        "count-words": ["0.00"] * GROUP,
        # The rows of its two sub-agents have the session's.
        "two-helpers": ["0.50"] * 3 * GROUP,
    }
    look = [str(sglang.python), "-W", "ignore", "-c", LOOK, str(file)]
    kept = subprocess.run(look, capture_output=True, text=True, timeout=SGLANG_START, check=True).stdout
    assert json.loads(kept) == {
        "rewards": sum(float(each) for rows in rewards.values() for each in rows),
        "rows": 6 * GROUP,
    }
