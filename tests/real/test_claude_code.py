"""`make claude-code`: a batch of Claude Code rollouts, in the environment where PyTorch is."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from examples.claude_code.agents import GROUP
from examples.claude_code.tasks import TASKS
from tests.agents.programs import claude_code, fetched
from tests.real.sglang.places import Installed

ROOT = Path(__file__).parents[2]
SECONDS = 240
LOOK = "import sys, torch; batch = torch.load(sys.argv[1]); print(batch['rewards'].tolist(), batch['loss_mask'].sum())"


@pytest.mark.timeout(SECONDS + 60)
def test_one_command_makes_a_batch_of_rollouts_with_their_rewards(
    sglang: Installed, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    fetched(claude_code, request)
    file = tmp_path / "batch.pt"
    line = [sys.executable, "-m", "examples.claude_code", "--output", str(file)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rewards = {task.name: re.findall(rf"^{task.name} +\d+ +([\d.]+)", done.stdout, re.MULTILINE) for task in TASKS}
    assert rewards == {
        "fix-greeting": ["1.00"] * GROUP,
        "count-lines": ["1.00"] * GROUP,
        "count-words": ["0.00"] * GROUP,
        # Its own row, and those of its two sub-agents.
        "two-helpers": ["0.50"] * 3 * GROUP,
    }
    look = [str(sglang.python), "-W", "ignore", "-c", LOOK, str(file)]
    shown = subprocess.run(look, capture_output=True, text=True, timeout=60, check=True).stdout
    assert sum(map(float, re.findall(r"0\.5|1\.0", shown))) == 0.5 * 3 * GROUP + 2 * GROUP
