"""Commands on a terminal whose encoding has no Unicode."""

import ast
import contextlib
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.paths import ROOT
from tests.unit.client.test_cli_conversations import turn_with

from rolloutfleet.cli.conversations import By, print_conversation, print_tokens, print_tree
from rolloutfleet.cli.encoding import _MARKS, allow_any_terminal
from rolloutfleet.cli.show import console, print_json

TOKENS = {
    "start": 0,
    "input_ids": [1, 2],
    "texts": ["a\n", "é🙂"],
    "logprobs": [0.0, -1.0],
    "versions": [-1, 4],
    "loss_mask": [0, 1],
    "annotations": {},
}


@pytest.fixture(params=["ascii", "latin-1"])
def encoding(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def written(encoding: str, write: Callable[[], None]) -> str:
    """The text that comes to a terminal of this encoding."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with contextlib.redirect_stdout(stream):
        allow_any_terminal()
        write()
        stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(encoding)


def test_a_conversation_is_shown_with_marks_in_ascii(encoding: str) -> None:
    turn = turn_with(TOKENS)

    def show() -> None:
        out = console()
        print_tree(out, [turn], frozenset({"t"}))
        print_conversation(out, [turn], whole=False)
        for by in By:
            print_tokens(out, [turn], by)

    text = written(encoding, show)
    assert "* 1 t" in text and "-- turn 1" in text and "\\U0001f642" in text


def test_json_stays_json_with_the_same_text(encoding: str) -> None:
    said = {"said": "é🙂…"}
    assert json.loads(written(encoding, lambda: print_json(said))) == said


def test_closed_output_takes_what_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    allow_any_terminal()
    print_json({})
    sys.stdout.close()


def test_each_mark_of_the_commands_has_a_form_in_ascii() -> None:
    folder = ROOT / "client" / "rolloutfleet" / "cli"
    marks = {character for path in folder.rglob("*.py") for said in texts(path) for character in said}
    assert {each for each in marks if not each.isascii()} <= set(_MARKS)


def texts(path: Path) -> list[str]:
    return [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
