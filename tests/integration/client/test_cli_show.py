"""`rolloutfleet show` against a running fleet, on what it left in files, and in a terminal."""

import json
import os
import pty
import re
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import httpx
import numpy as np
import pytest
from safetensors.numpy import save
from tests.commands import CLI, invoke
from tests.integration.client.fleet.agents import say
from tests.local_fleets import Up, running
from tests.waiting import PATIENCE, until

from rolloutfleet.files.forms import FileForm, part_writer
from rolloutfleet.fleet import Fleet
from rolloutfleet.viewing import load_texts, merged, open_file
from rolloutfleet.wire import ShownTurn
from rolloutfleet_engine.model import model_path

FLEET = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {name: math}
spec: {model: simulated, engine: {replicas: 1, simulated: {latency: 0s, tokenLatency: 0s}}, proxies: {replicas: 2}}
"""
HOSTILE = "\x1b]0;owned\x07\x1b[2J \u202edesrever\u202c <b>[bold]not markup[/bold] \x9b31m"
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
TOOLS = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]

Json = Any


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("fleet"), FLEET, "--keep", "1") as up:
        up.book()
        yield up


@pytest.fixture(scope="module")
def session(up: Up) -> tuple[str, list[str]]:
    """A session with a fork: its id and its turns. The first two are one conversation, the last forks from it."""
    with Fleet.from_file(up.state) as fleet:
        started = fleet.start_session("t\x1b[31m")
        first = [{"role": "user", "content": f"Grüße 🙂 {HOSTILE}"}]
        said, one = say(started, first)
        call = {"id": "c1", "type": "function", "function": {"name": "look_up", "arguments": '{"city": "Oslo"}'}}
        made = {"role": "assistant", "content": "", "tool_calls": [call]}
        result = {"role": "tool", "tool_call_id": "c1", "content": "42 degrees"}
        _, two = say(started, [*said, {"role": "user", "content": "And?"}, made, result])
        changed = [{"role": "user", "content": "Another"}, said[1], {"role": "user", "content": "And?"}]
        _, other = say(started, changed, tools=TOOLS)
        fleet.reward(started, 0.5)
    return started.session_id, [one, two, other]


def shown(up: Up, what: str, *words: str) -> str:
    done = invoke("show", what, *words, "--state-dir", str(up.state))
    assert done.returncode == 0, done.stderr
    return done.stdout


def told(up: Up, what: str, *words: str) -> Json:
    return json.loads(shown(up, what, *words, "--json"))


def in_a_terminal(*command: str, **environment: str) -> str:
    """What a command writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "FORCE_COLOR")}
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.STDOUT,
        env={**variables, "TERM": "xterm-256color", "COLUMNS": "100", **environment},
    )
    os.close(theirs)
    written = b""
    while select.select([ours], [], [], 60)[0]:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # what a terminal says when its last writer is gone
            break
        if not piece:
            break
        written += piece
    os.close(ours)
    assert process.wait(PATIENCE) == 0, written
    return written.decode()


def test_the_tree_and_the_newest_branch_are_shown(up: Up, session: tuple[str, list[str]]) -> None:
    name, (one, two, other) = session
    text = shown(up, name)
    tree = [line for line in text.splitlines() if line.startswith(("●", "○"))]
    assert [other in line for line in tree] == [False, False, True] and tree[2].startswith("●")
    assert "reward 0.5" in tree[2] and "fork: content of message 0" in tree[2]
    assert (
        "tools look_up" in text and "Another" in text and "42 degrees" not in text and one in tree[0] and two in tree[1]
    )


def test_calls_and_their_results_are_shown_along_a_branch(up: Up, session: tuple[str, list[str]]) -> None:
    name, (_, two, _) = session
    text = shown(up, name, "--branch", two)
    assert '→ look_up({"city": "Oslo"})' in text and "tool c1\n42 degrees" in text
    assert text == shown(up, name, "--branch", "2")
    assert "there is no turn 9" in invoke("show", name, "--branch", "9", "--state-dir", str(up.state)).stderr


def test_long_texts_are_shortened_unless_all_is_asked_for(up: Up) -> None:
    with Fleet.from_file(up.state) as fleet:
        started = fleet.start_session()
        say(started, [{"role": "user", "content": "word " * 2000}])
    assert "8000 more characters (--full shows them)" in shown(up, started.session_id)
    assert "word " * 1999 in shown(up, started.session_id, "--full")


def test_tokens_are_a_line_each_for_other_programs(up: Up, session: tuple[str, list[str]]) -> None:
    name, (_, two, _) = session
    head, *rows = [
        line.split("\t") for line in shown(up, name, "--branch", two, "--tokens").splitlines() if line.count("\t") == 6
    ]
    assert head == ["turn", "token", "id", "logprob", "version", "mask", "text"]
    with Fleet.from_file(up.state) as fleet:
        turn = fleet.turns(name)[1]
    assert turn.turn_id == two
    sampled = [row for row in rows if row[0] == "2" and row[5] == "1"]
    assert [int(row[2]) for row in sampled] == turn.output_ids
    assert [float(row[3]) for row in sampled] == pytest.approx(turn.logprobs, abs=1e-4)
    assert [int(row[4]) for row in sampled] == turn.versions


def test_tokens_have_colours_in_a_terminal_unless_they_are_not_wanted(up: Up, session: tuple[str, list[str]]) -> None:
    command = (*CLI, "show", session[0], "--branch", "1", "--tokens", "--state-dir", str(up.state))
    coloured = in_a_terminal(*command)
    assert "logprob: " in COLOUR.sub("", coloured) and "Grüße 🙂" in COLOUR.sub("", coloured)
    assert len(set(COLOUR.findall(coloured))) > 4
    plain = in_a_terminal(*command, NO_COLOR="1")
    assert "turn\ttoken\tid\t" in plain and not re.search(r"\x1b\[[0-9;]*3[0-9]", plain)


@pytest.mark.parametrize("words", [(), ("--tokens",)])
def test_hostile_content_is_text_in_a_terminal(up: Up, session: tuple[str, list[str]], words: tuple[str, ...]) -> None:
    command = (*CLI, "show", session[0], "--branch", "1", *words, "--state-dir", str(up.state))
    text = COLOUR.sub("", in_a_terminal(*command))
    assert not any(letter in text for letter in "\x1b\x07\x9b\u202e\u202c")
    assert "[bold]not markup[/bold]" in text.replace("\r\n", "")


def test_files_of_exports_show_what_the_fleet_did(up: Up, session: tuple[str, list[str]], tmp_path: Path) -> None:
    name, (_, two, _) = session
    with Fleet.from_file(up.state) as fleet:
        captured = merged(fleet.conversation(name, branch=two))
        forms: tuple[Literal["json", "safetensors"], ...] = ("json", "safetensors")
        for form in forms:
            exported = fleet.export_file(session_ids=[name], form=form)
            (tmp_path / f"export.{form}").write_bytes(exported.content)
            assert exported.lease_id is not None
            fleet.end_lease(exported.lease_id, acknowledge=False)
        with fleet.export(session_ids=[name], on_exit="keep") as export:
            (trajectory,) = export
            fleet.release([trajectory])
    check_file(tmp_path / "export.json", captured)
    check_file(tmp_path / "export.safetensors", captured)
    for part in (FileForm.JSONL, FileForm.PARQUET):
        file = tmp_path / f"part.{part.value}"
        writer = part_writer(part, file)
        writer.add(trajectory)
        writer.close()
        check_file(file, captured)
    text = shown(up, str(tmp_path / "export.json"), "--branch", two, "--tokenizer", str(model_path()))
    assert two in text and "reward 0.5" in text


def check_file(file: Path, captured: list[ShownTurn]) -> None:
    """The row has the branch's tokens and answers."""
    (recorded,) = open_file(file, load_texts(Path(model_path())))
    held = recorded.branch(captured[-1].turn_id)
    assert held is not None
    found = held.read()
    assert [turn.turn_id for turn in found] == [turn.turn_id for turn in captured]
    for key in ("input_ids", "logprobs", "versions", "texts"):
        of_file = [each for turn in found for each in getattr(turn.tokens, key)]
        assert of_file == [each for turn in captured for each in getattr(turn.tokens, key)], key
    assert [turn.messages[-1].message for turn in found] == [turn.messages[-1].message for turn in captured]


def test_a_dump_is_shown_like_the_session_that_it_was(up: Up) -> None:
    with Fleet.from_file(up.state) as fleet:
        started = fleet.start_session()
        said, one = say(started, [{"role": "user", "content": "Hello"}])
        _, two = say(started, [*said, {"role": "user", "content": "And?"}])
        annotate(fleet, started, one, note=f"so-so {HOSTILE}")
        live = told(up, started.session_id)
        (owner,) = [each for each in fleet.proxies() if each.url in started.base_url]
        headers = {"authorization": f"Bearer {fleet.whereabouts.admin_key}"}
        with httpx.Client(base_url=owner.url, headers=headers, timeout=PATIENCE) as admin:
            admin.post("/drain", json={"id": "dumping"}).raise_for_status()
            admin.post("/dumps").raise_for_status()
            admin.delete("/drain").raise_for_status()
    (file,) = up.state.glob(f"dumps/*/{started.session_id}-active.json")
    dumped = told(up, str(file), "--tokenizer", str(model_path()))
    assert [turn["turn_id"] for turn in dumped["turns"]] == [one, two]
    for mine, theirs in zip(dumped["turns"], live["turns"], strict=True):
        assert {**mine, "trajectory_state": None} == theirs
    text = shown(up, str(file))
    assert "Hello" in text and "note so-so \\x1b]0;owned" in text
    rows = [line.split("\t") for line in shown(up, str(file), "--tokens").splitlines() if line.count("\t") == 7]
    assert rows[0][7] == "logprobs" and rows[1][:2] == ["1", "0"]
    first, *others = [row for row in rows[1:] if row[0] == "1" and row[5] == "1"]
    assert first[7] == "" and others and {row[7] for row in others} == {"-0.2500"}
    assert {row[7] for row in rows[1:] if row[0] == "2"} == {""}


def test_a_copy_of_a_trained_session_is_shown_like_the_session_that_it_was(up: Up) -> None:
    with Fleet.from_file(up.state) as fleet:
        started = fleet.start_session("kept")
        said, one = say(started, [{"role": "user", "content": "Hello"}])
        say(started, [*said, {"role": "user", "content": "And?"}])
        annotate(fleet, started, one, note="so-so")
        fleet.reward(started, 0.5)
        live = told(up, started.session_id)
        fleet.close_session(started)
        lease = fleet.export_file(session_ids=[started.session_id]).lease_id
        assert lease is not None
        fleet.end_lease(lease, acknowledge=True)
    file = up.state / f"kept/{started.session_id[1]}/{started.session_id}-kept.json"
    until(file.exists)
    kept = told(up, str(file), "--tokenizer", str(model_path()))
    assert (kept["name"], kept["task"], kept["kept"]) == (started.session_id, "kept", "a copy")
    for mine, theirs in zip(kept["turns"], live["turns"], strict=True):
        assert {**mine, "trajectory_state": None} == {**theirs, "trajectory_state": None}


def annotate(fleet: Fleet, session: Any, turn: str, *, note: str) -> None:
    """Of all but the first token."""
    (length,) = [each.completion_tokens for each in fleet.turns(session) if each.turn_id == turn]
    ours = np.full(length, -0.25, np.float32)
    ours[0] = np.nan
    httpx.post(
        f"{session.base_url.removesuffix('/v1')}/annotations",
        content=save({f"{turn}/logprobs": ours}, metadata={"notes": json.dumps({turn: note})}),
        headers={"authorization": f"Bearer {fleet.whereabouts.admin_key}"},
    ).raise_for_status()


def test_what_can_not_be_shown_is_said_in_a_line(up: Up, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text("{}")
    for what, said in ((str(other), "is not an export"), ("s0-0123456789ab-0123456789abcdef", "store_lost")):
        done = invoke("show", what, "--state-dir", str(up.state))
        assert done.returncode in (1, 2) and said in done.stderr and done.stderr.count("\n") == 1
