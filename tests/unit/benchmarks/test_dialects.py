"""Each dialect is measured on what its own program sent, beside the same prompts by chat completions."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.conversations import recorded
from benchmarks.rigs import dialects
from benchmarks.rigs.dialects import CONVERSATIONS, Ids, Pass

MARK = re.compile(r"<\d+:\d+>")


Turn = tuple[int, int | None, bytes, bytes]
TURNS: list[Turn] = [(1, None, b"ids", b"said"), (2, 1, b"more", b"said")]


@pytest.mark.parametrize(
    ("turns", "differ"),
    [(TURNS, 0), ([TURNS[0], (2, None, b"more", b"said")], 1), ([TURNS[0], (2, 1, b"else", b"said")], 1), ([], 2)],
)
def test_a_prompt_that_is_another_one_is_a_fault(turns: list[Turn], differ: int) -> None:
    ids: Ids = {"chat": TURNS, "own": turns}.__getitem__
    passes = [Pass("codex", dialect, [dialect], cpu=1.0, failed=0) for dialect in ("chat", "own")]
    [figure] = [each for each in dialects._figures("codex", passes, ids) if each.check]
    assert (figure.median, figure.met) == (differ, not differ)


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_recording_has_twenty_turns_with_tools_each_going_on_from_the_last(name: str) -> None:
    conversation = recorded.read(name)
    bodies = list(conversation.bodies())
    assert len(bodies) == 20 and all(body["tools"] == bodies[0]["tools"] for body in bodies)
    lengths = [len(json.dumps(body)) for body in bodies]
    assert lengths == sorted(lengths) and lengths[0] > 40_000
    # To go on is checked where they are read.
    assert len(dialects.speak(name, turns=20).said) == 20


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_recording_holds_nobodys_sentences(name: str) -> None:
    conversation = recorded.read(name)
    texts = _strings([conversation.first, [each.more for each in conversation.later]])
    kept = [text for text in texts if not MARK.fullmatch(text) and not text.startswith("{")]
    assert max(map(len, kept)) <= recorded.LONGEST_NAME
    assert all(len(text) <= recorded.LONGEST_WORDS for text in kept if " " in text)


def test_a_text_is_read_as_another_of_its_length_and_the_same_as_the_same() -> None:
    told = {
        "one": "a sentence that says something",
        "again": ["a sentence that says something"],
        "name": "exec_command",
    }
    kept = recorded.without_texts(told)
    read: Any = recorded._with_texts(kept, "x" * 200_000)
    assert "sentence" not in json.dumps(kept)
    assert read["again"] == [read["one"]] and len(read["one"]) == len(told["one"]) and read["name"] == "exec_command"


def _strings(value: Any, field: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for name, each in value.items():
            yield from _strings(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each, field)
    elif isinstance(value, str) and field != recorded.KEPT:
        yield value
