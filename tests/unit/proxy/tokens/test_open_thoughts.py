"""Turns that follow a reply which stopped in an open thought, in every format that thinks."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, chat_format, without_byte_decoder, write_model
from tests.unit.proxy.tokens.models.measuring import ASKED, Replies, replies
from tests.unit.proxy.tokens.models.page import NAMES

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat

USER: Message = {"role": "user", "content": "More?"}
FOLLOWING: list[list[Message]] = [
    [USER],
    [{"role": "system", "content": "Mind it."}, USER],
]
THINKING = [name for name in NAMES if name != "llama-3"]


def cut_in_thought(model: ChatFormat, replied: Replies) -> list[int]:
    """The tokens of a reply up to the last of its thought."""
    before, thought, _ = model.vocabulary.decode(replied.final).partition(replied.thought)
    assert thought
    return model.vocabulary.encode(before + thought, add_special_tokens=False)


def added(model: ChatFormat, args: TemplateArgs, output: list[int], new: list[Message]) -> list[int] | None:
    """What the next turn's prompt has behind a reply; None where it doesn't begin with the reply's turn."""
    prompt = model.prompt(ASKED, args, []).ids
    reply = array("i", output)
    message = model.reader(prompt, args, seed=b"a").read(reply).message
    parent = Candidate(len(ASKED) + 1, lambda: (prompt, reply))
    child = model.prompt([*ASKED, message, *new], args, [parent])
    if child.parent is None:
        return None
    assert child.parent == 0
    assert child.ids[: len(prompt) + len(reply)] == prompt + reply
    return child.ids[len(prompt) + len(reply) :].tolist()


@pytest.mark.parametrize("name", THINKING)
def test_next_messages_follow_the_end_token_of_a_reply_that_stops_in_a_thought(models: Path, name: str) -> None:
    model = chat_format(name, models)
    replied = replies(name, model)
    args, final = replied.args, replied.final.tolist()
    for stop in model.stop_token_ids:
        output = [*cut_in_thought(model, replied), stop]
        read = model.reader(model.prompt(ASKED, args, []).ids, args, seed=b"a").read(output).message
        assert (read["content"], read["reasoning_content"].strip()) == ("", replied.thought)
        for new in FOLLOWING:
            behind_answer = added(model, args, [*final[:-1], stop], new)
            # Nothing but results may follow the token that ends Gemma 4's calls.
            assert behind_answer or model.vocabulary.decode([stop]) == "<|tool_response>"
            assert added(model, args, output, new) == behind_answer


def test_an_open_thought_is_found_in_a_vocabulary_that_cannot_be_read_by_bytes(tmp_path: Path) -> None:
    model = without_byte_decoder(tmp_path / "m", "qwen3")
    replied = replies("qwen3", model)
    output = [*cut_in_thought(model, replied), model.stop_token_ids[0]]
    assert added(model, replied.args, output, [USER])


@pytest.mark.parametrize("name", THINKING)
def test_a_thought_that_the_token_limit_cuts_is_ended_before_the_next_messages(models: Path, name: str) -> None:
    model = chat_format(name, models)
    replied = replies(name, model)
    cut = cut_in_thought(model, replied)
    behind_cut, behind_end = (
        model.vocabulary.decode(added(model, replied.args, output, [USER]) or [])
        for output in (cut, [*cut, model.stop_token_ids[0]])
    )
    assert behind_end and behind_cut.endswith(behind_end)
    assert behind_cut.startswith(("</think", "<channel|>", "<|end|>", "<|end_message|>"))


def test_a_reply_without_a_thought_keeps_the_bridge_of_its_format(models: Path) -> None:
    """Gemma 4 ends calls with a token of which nothing but their results may follow."""
    model = chat_format("gemma4", models)
    replied = replies("gemma4", model)
    called = model.vocabulary.convert_tokens_to_ids("<|tool_response>")
    assert added(model, replied.args, [*replied.final.tolist()[:-1], called], [USER]) is None
    assert replied.working[-1] == called and added(model, replied.args, replied.working.tolist(), [USER]) is None


@pytest.mark.parametrize("name", ["qwen3.5", "glm-4.5"])
def test_an_open_thought_is_dropped_where_settings_drop_reasoning(models: Path, tmp_path: Path, name: str) -> None:
    keeping = chat_format(name, models)
    dropping = load(write_model(tmp_path, FAMILIES[name]), renderer=name, thinking_retention="tool_cycle")
    replied = replies(name, keeping)
    output = [*cut_in_thought(keeping, replied), keeping.stop_token_ids[0]]
    assert added(keeping, replied.args, output, [USER]) and added(dropping, replied.args, output, [USER]) is None
