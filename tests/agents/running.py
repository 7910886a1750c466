"""Run a framework's loop in a session of its own, and look at what the fleet captured of it."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.agents.frameworks import ROUNDS, Framework
from tests.agents.install import python_of
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.waiting import START

LOOPS = Path(__file__).parent / "loops"
TIMEOUT = START
"""Seconds for one loop; importing some of the frameworks takes ten, and more on a busy machine."""

Json = Any


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a loop told, and what was captured of it."""

    calls: int
    """Tools that the framework called."""
    structured: bool
    """Whether a form came, which the framework itself validated."""
    turns: int
    rows: int
    """Of an export in `concat`."""
    branches: list[str]
    """Why turns that start a row but the first do so, as `field`s."""


class LoopFailed(AssertionError):
    """The loop did not come to its end; the message has the last that it said."""


@contextmanager
def fleet_for(folder: Path, *, last_call: str | None) -> Iterator[Fleet]:
    """A fleet whose engine makes loops of `ROUNDS` rounds."""
    told = () if last_call is None else ("--last-call", last_call)
    with running_fleet(folder, engine_options=("--tool-rounds", str(ROUNDS), *told)) as fleet:
        yield fleet


def run(framework: Framework, fleet: Fleet) -> Outcome:
    """Raises LoopFailed."""
    session = fleet.proxy.start_session(task_id=framework.name)
    said = _say(framework, session)
    turns = session.turns()
    return Outcome(
        calls=said["calls"],
        structured=said["structured"] is not None,
        turns=len(turns),
        rows=_rows(session),
        branches=[turn["branch_reason"]["field"] for turn in turns if turn["branch_reason"] is not None],
    )


def _say(framework: Framework, session: AgentSession) -> Json:
    settings = {"OPENAI_BASE_URL": session.base_url, "OPENAI_API_KEY": session.api_key}
    return told_by(framework.loop, python_of(framework.name), {**os.environ, **settings})


def told_by(loop: str, python: Path, environment: Mapping[str, str]) -> Json:
    """What a loop told in its last line. Raises LoopFailed."""
    try:
        done = subprocess.run(
            [python, LOOPS / f"{loop}.py"],
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**environment, "PYTHONPATH": str(LOOPS)},
        )
    except subprocess.TimeoutExpired:
        raise LoopFailed(f"{loop}: no end within {TIMEOUT:g} s") from None
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise LoopFailed(f"{loop}: {done.stderr.strip()[-2000:]}")
    return json.loads(lines[-1])


def _rows(session: AgentSession) -> int:
    with session.proxy.admin() as admin:
        admin.post(f"/sessions/{session.session_id}/close").raise_for_status()
        asked = {"session_ids": [session.session_id], "style": "concat"}
        reply = admin.post("/export", json=asked, headers={"accept": "application/json"}).raise_for_status()
    return sum(len(trajectory["rows"]) for trajectory in reply.json()["trajectories"])
