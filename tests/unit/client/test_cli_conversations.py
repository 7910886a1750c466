"""Tokens of a conversation in a terminal, and of turns that come on several pages."""

import io
import re
from typing import Any

import pytest
from rich.console import Console

from rolloutfleet.cli.conversations import By, print_tokens
from rolloutfleet.viewing import merged
from rolloutfleet.wire import Conversation, ShownTurn

Json = Any


def turn_with(tokens: Json) -> ShownTurn:
    return ShownTurn.model_validate(
        dict.fromkeys(("parent_id", "reward", "trajectory_id", "trajectory_state", "timing", "tools"))
        | {"turn_id": "t", "finish_reason": "stop", "mixed_cache": True, "number": 1, "discarded": False}
        | {"delivered": True, "created_at": 0.0, "prompt_tokens": 1, "completion_tokens": 3, "new_prompt_tokens": 1}
        | {"leases": [], "template_kwargs": None, "messages": [], "tokens": tokens}
    )


@pytest.mark.parametrize("by", [By.VERSION, By.MASK, By.MISMATCH])
def test_colours_tell_versions_what_is_trained_and_how_far_the_trainer_is(by: By) -> None:
    turn = turn_with(
        {
            "start": 0,
            "input_ids": [1, 2, 3, 4],
            "texts": ["prompt", "old", "new", "none"],
            "logprobs": [0.0, -1.0, -1.0, -1.0],
            "versions": [-1, 4, 5, 5],
            "loss_mask": [0, 1, 1, 0],
            "annotations": {"logprobs": [None, -1.001, -2.0, None]},
        }
    )
    written = io.StringIO()
    out = Console(file=written, force_terminal=True, color_system="standard", width=100)
    print_tokens(out, [turn], by)
    styles = {text: style for style, text in re.findall(r"(\x1b\[[0-9;]+m)(\w+)\x1b\[0m", written.getvalue())}
    assert styles["prompt"] == "\x1b[2m"
    assert (styles["old"] == styles["new"]) == (by is By.MASK)
    assert (styles["new"] == styles["none"]) == (by is By.VERSION)
    assert (styles["none"] == styles["prompt"]) == (by is By.MISMATCH)


def test_annotations_of_a_turn_on_several_pages_stay_with_their_tokens() -> None:
    parts: list[Json] = [
        {"start": 0, "input_ids": [1, 2], "annotations": {}},
        {"start": 2, "input_ids": [3, 4], "annotations": {"a": [None, 0.5], "b": [1.0, 2.0]}},
        {"start": 4, "input_ids": [5], "annotations": {"a": [0.25], "b": [3.0]}},
    ]
    pages = [
        Conversation(session_id="s", branch="t", cursor=None, turns=[turn_with(part | per_token(part["input_ids"]))])
        for part in parts
    ]
    (turn,) = merged(pages)
    assert turn.tokens.annotations == {"a": [None, None, None, 0.5, 0.25], "b": [None, None, 1.0, 2.0, 3.0]}


def per_token(ids: list[int]) -> Json:
    zeros: list[int] = [0] * len(ids)
    return {"texts": [str(each) for each in ids], "logprobs": zeros, "versions": zeros, "loss_mask": zeros}
