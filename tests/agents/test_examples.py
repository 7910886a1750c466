"""The fleet of examples/claude-code, started as its page says, with the real Claude Code at work in a session of it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agents.programs import ClaudeCode, Ended
from tests.commands import invoke
from tests.local_fleets import Up, running
from tests.paths import ROOT

from rolloutfleet.fleet import Fleet

EXAMPLE = ROOT / "examples" / "claude-code" / "fleet.yaml"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    with running(tmp_path, EXAMPLE.read_text()) as up:
        up.book()
        yield up


def test_claude_code_does_its_task_with_a_sub_agent(up: Up, tmp_path: Path) -> None:
    session, ended = work(up, tmp_path)
    assert ended.status == 0, ended.shown
    assert (tmp_path / "work" / "hello.txt").read_text() == "Hello, world!\n", ended.shown
    with Fleet.from_file(up.state) as fleet:
        kinds = [turn.lineage.kind for turn in fleet.turns(session)]
    assert (kinds.count("subagent"), kinds.count("main")) == (2, 3)


def work(up: Up, folder: Path) -> tuple[str, Ended]:
    """What the head of the example says, in a folder of its own."""
    (prompt,) = re.findall(r'^#   claude .*"(.+)"$', EXAMPLE.read_text(), re.MULTILINE)
    new = invoke("session", "new", "--for", "claude-code", "--state-dir", str(up.state)).stdout
    said = dict(word.split("=", 1) for word in shlex.split(new, comments=True) if "=" in word)
    url = f"{said['ANTHROPIC_BASE_URL']}/v1"
    agent = ClaudeCode(folder=folder, base_url=url, api_key=said["ANTHROPIC_AUTH_TOKEN"], settings=said)
    return url.split("/")[-2], agent.run(prompt)
