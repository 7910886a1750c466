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


def test_claude_code_does_its_task_with_a_sub_agent_and_nothing_warns(
    up: Up, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, ended = work(up, tmp_path)
    assert ended.status == 0, ended.shown
    assert (tmp_path / "work" / "hello.txt").read_text() == "Hello, world!\n", ended.shown
    with Fleet.from_file(up.state) as fleet:
        kinds = [turn.lineage.kind for turn in fleet.turns(session)]
        turns = fleet.stats().proxies[0]
    assert (kinds.count("subagent"), kinds.count("main")) == (2, 3)
    assert turns.follow_ups == {"extending": 3} and turns.forks == {}
    monkeypatch.setenv("FORCE_COLOR", "1")
    for words in (["status"], ["top", "--once"]):
        shown = invoke(*words, "--state-dir", str(up.state)).stdout
        assert "\x1b[" in shown
        assert not re.search(r"\x1b\[[0-9;]*3[13]m|Warning", shown), shown
    assert "fork: " not in invoke("show", session, "--state-dir", str(up.state)).stdout


def work(up: Up, folder: Path) -> tuple[str, Ended]:
    """What the head of the example says, in a folder of its own."""
    (prompt,) = re.findall(r'^#   claude .*"(.+)"$', EXAMPLE.read_text(), re.MULTILINE)
    new = invoke("session", "new", "--for", "claude-code", "--state-dir", str(up.state)).stdout
    said = dict(word.split("=", 1) for word in shlex.split(new, comments=True) if "=" in word)
    url = f"{said['ANTHROPIC_BASE_URL']}/v1"
    agent = ClaudeCode(folder=folder, base_url=url, api_key=said["ANTHROPIC_AUTH_TOKEN"], settings=said)
    return url.split("/")[-2], agent.run(prompt)
