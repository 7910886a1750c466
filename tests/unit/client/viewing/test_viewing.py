"""What is looked at: text that steers no terminal, trees of any form, pages put together."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.client.dumps.samples import head, turn

from rolloutfleet.dumps.form import encode
from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.viewing import NoTokenizer, Unreadable, limbs, load_texts, open_file, safe
from rolloutfleet.wire import TurnFacts
from rolloutfleet_engine.model import model_path


def drawn(*pairs: tuple[str, str | None]) -> list[tuple[str, int]]:
    said = {"reward": None, "finish_reason": "stop", "mixed_cache": False}
    turns = [TurnFacts.model_validate({"turn_id": turn, "parent_id": parent, **said}) for turn, parent in pairs]
    return [(limb.turn.turn_id, limb.depth) for limb in limbs(turns)]


@pytest.mark.parametrize(
    ("hostile", "shown"),
    [
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("a\rb\x08\x9b2J\x7f", "a\\rb\\x08\\x9b2J\\x7f"),
        ("\u202eabc\u2066\u200f\u061c", "\\u202eabc\\u2066\\u200f\\u061c"),
        ("\ud800 \u2028 \ufeff \U000e0041", "\\ud800 \\u2028 \\ufeff \\U000e0041"),
        ("Grüße\t日本語 👩‍🚀\nline", "Grüße\t日本語 👩‍🚀\nline"),
    ],
)
def test_what_would_steer_a_terminal_is_written_out_and_nothing_else(hostile: str, shown: str) -> None:
    assert safe(hostile) == shown


@given(st.text())
def test_no_text_brings_a_control_character_or_half_a_letter(text: str) -> None:
    shown = safe(text)
    shown.encode()
    assert all(
        letter in "\n\t" or letter.isprintable() or letter.isspace() or letter in "\u200c\u200d" or not letter.isascii()
        for letter in shown
    )
    assert not any(ord(letter) in range(0x7F, 0xA0) or (ord(letter) < 32 and letter not in "\n\t") for letter in shown)


def test_a_chain_stays_at_its_depth_and_branches_stand_to_the_right() -> None:
    assert drawn(("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("e", "d"), ("f", None)) == [
        ("a", 0),
        ("d", 1),
        ("e", 1),
        ("b", 0),
        ("c", 0),
        ("f", 0),
    ]


def test_a_turn_whose_parent_is_elsewhere_is_a_root() -> None:
    assert drawn(("b", "elsewhere"), ("c", "b")) == [("b", 0), ("c", 0)]


def test_however_long_a_chain_is_it_is_drawn() -> None:
    pairs = [("0", None), *((str(number), str(number - 1)) for number in range(1, 5000))]
    assert len(drawn(*pairs)) == 5000


def test_texts_are_those_of_the_tokens_and_no_character_is_torn() -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(Path(model_path()) / "tokenizer.json"))
    ids = tokenizer.encode("Grüße 🙂🦊 <|im_start|>user\nwords", add_special_tokens=False).ids
    found = load_texts(Path(model_path()))(ids)
    assert len(found) == len(ids) and None in found
    assert "".join(piece or "" for piece in found) == "Grüße 🙂🦊 <|im_start|>user\nwords"
    assert load_texts(None)([1, 2]) == ["1 ", "2 "]


def test_what_is_no_tokenizer_and_no_file_of_turns_is_said_so(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"format": 1}')
    with pytest.raises(NoTokenizer):
        load_texts(other)
    for name, content in (
        ("other.json", "{}"),
        ("a.json", '{"format":"rolloutfleet-dump"}'),
        ("a.jsonl", "1"),
        ("a.parquet", "x"),
        ("a.safetensors", "\0"),
    ):
        (tmp_path / name).write_text(content)
        with pytest.raises(Unreadable, match=name):
            open_file(tmp_path / name, load_texts(None))
    with pytest.raises(Unreadable, match="No such file"):
        open_file(tmp_path / "none", load_texts(None))


def record(**lists: list[Any]) -> str:
    """A row of an export, as a line of jsonl."""
    turn = {"turn_id": "turn-1", "parent_id": None, "reward": None, "finish_reason": "stop", "mixed_cache": False}
    names = ("trajectory_id", "session_id", "group_id")
    whole: dict[str, Any] = {
        **dict.fromkeys(names, "s0-1"),
        "task_id": None,
        "marked": None,
        "row": 0,
        "turns": [turn | {"message": {"role": "assistant"}}],
        "input_ids": [1, 2],
        "loss_mask": [0, 1],
        "logprobs": [0.0, -1.0],
        "versions": [-1, 0],
        "turn_ids": [-1, 0],
    }
    return json.dumps(whole | lists) + "\n"


@pytest.mark.parametrize("name", ["input_ids", "loss_mask", "logprobs", "versions", "turn_ids"])
def test_a_row_whose_lists_are_uneven_is_named(tmp_path: Path, name: str) -> None:
    file = tmp_path / "part.jsonl"
    file.write_text(record())
    [recorded] = open_file(file, load_texts(None))
    assert len(recorded.branches[0].read()[0].tokens.logprobs) == 2
    for uneven in ([], [0], [0, 1, 1]):
        file.write_text(record(**{name: uneven}))
        with pytest.raises(Unreadable, match="row 0 of s0-1 has lists of different lengths"):
            open_file(file, load_texts(None))


def test_a_dumps_turn_whose_lists_are_uneven_is_named(tmp_path: Path) -> None:
    short = turn(1).model_copy(update={"logprobs": Tensor.of(np.zeros(1, np.float32))})
    file = tmp_path / "dump.json"
    file.write_bytes(b"".join(encode(head(), [short])))
    with pytest.raises(Unreadable, match=r"turn .*: logprobs has another shape than its output_ids"):
        open_file(file, load_texts(None))
