"""Replies that the grammar compiler of the real engine draws."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tests.engine.sglang import launch
from tests.engine.sglang.places import HERE, Installed
from tests.waiting import SGLANG_START


def drawn(sglang: Installed, cases: list[dict[str, Any]], directory: Path) -> list[list[dict[str, Any]]]:
    """Of each case, and of each of its structural tags, what `draw.py` says."""
    asked, answer = directory / "cases", directory / "drawn"
    asked.write_text(json.dumps(cases))
    command = [str(sglang.python), str(HERE / "draw.py"), str(asked), str(answer)]
    done = subprocess.run(command, env=launch.environment(sglang), capture_output=True, text=True, timeout=SGLANG_START)
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[list[dict[str, Any]]] = json.loads(answer.read_text())
    return found
