"""Replies that are laid down come in their order, to the cue that was given last, in the chat format's own syntax."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.engine.asking import WEATHER, Asker
from tests.unit.proxy.tokens.models.families import FAMILIES, write_model

from rolloutfleet_engine.chat import prompt_text
from rolloutfleet_engine.cues import Cue, CuedReply, Message, ToolCall, parse_cues, read_cues, reply_to
from rolloutfleet_engine.model import Model
from rolloutfleet_engine.scene import ChatReader
from rolloutfleet_engine.script import LoopOptions

CALL = ToolCall(name="get_weather", arguments={"city": "Zürich", "days": 3})
OTHER = ToolCall(name="get_weather", arguments={"city": "Oslo"})
CUES = (
    Cue(
        cue="the weather",
        replies=(
            CuedReply(reasoning="I ask twice.", text="Let me look.", calls=(CALL, OTHER)),
            CuedReply(text="It rains."),
        ),
    ),
    Cue(cue="a summary", replies=(CuedReply(text="We spoke of the weather."),)),
)
ASKED = Message(role="user", text="Tell me the weather, please.")
SAID = Message(role="assistant", text="…")
RESULT = Message(role="tool", text="<tool_response>\nthe weather: a summary\n</tool_response>")


def test_the_replies_to_a_cue_come_one_after_the_other() -> None:
    first, second = CUES[0].replies
    assert reply_to([ASKED], CUES) == first
    assert reply_to([ASKED, SAID, RESULT], CUES) == second
    assert reply_to([ASKED, SAID, RESULT, SAID], CUES) is None


def test_the_cue_that_was_given_last_holds_and_only_the_users_messages_give_any() -> None:
    summary = Message(role="user", text="Write a summary of all that.")
    assert reply_to([ASKED, SAID, summary], CUES) == CUES[1].replies[0]
    assert reply_to([summary, SAID, ASKED], CUES) == CUES[0].replies[0]
    assert reply_to([Message(role="system", text="the weather"), RESULT], CUES) is None


@pytest.fixture(scope="module")
def glm(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(write_model(tmp_path_factory.mktemp("glm"), FAMILIES["glm-4.5"]))


def test_prompts_may_be_in_glms_form(glm: Model) -> None:
    prompt = "[gMASK]<sop><|system|>\nBe brief.<|user|>\nHi<|assistant|>\nWell.<|observation|>\nCold.<|assistant|>"
    assert ChatReader(glm).messages(glm.encode(prompt)) == [
        Message(role="system", text="Be brief."),
        Message(role="user", text="Hi"),
        Message(role="assistant", text="Well."),
        Message(role="tool", text="Cold."),
    ]


@given(st.lists(st.sampled_from([ASKED, SAID, RESULT])))
def test_as_many_replies_are_spent_as_answers_were_given_since_the_cue(messages: list[Message]) -> None:
    reply = reply_to(messages, CUES)
    at = max((place for place, message in enumerate(messages) if message is ASKED), default=None)
    spent = 0 if at is None else messages[at:].count(SAID)
    assert reply == (None if at is None or spent > 1 else CUES[0].replies[spent])


def test_arguments_name_what_a_tool_has_told() -> None:
    call = ToolCall(name="wait", arguments={"ids": ["{{agent_id}}"], "note": "for {{nobody}}", "seconds": 1})
    cues = [Cue(cue="the weather", replies=(CuedReply(), CuedReply(calls=(call,))))]
    told = [Message(role="tool", text='{"agent_id": "a"}'), Message(role="tool", text='x {"agent_id":"b\\"c", "n": 1}')]
    reply = reply_to([ASKED, SAID, *told], cues)
    assert reply is not None
    assert reply.calls[0].arguments == {"ids": ['b"c'], "note": "for ", "seconds": 1}


def prompt_of(model: Model, *messages: dict[str, Any]) -> list[int]:
    return model.encode(prompt_text([{"role": "system", "content": "the weather"}, *messages], [WEATHER]))


async def test_calls_reasoning_and_text_are_written_as_the_chat_format_has_them(
    engine: Callable[..., Asker], model: Model
) -> None:
    asker = engine(loop=LoopOptions(cues=CUES))
    question = {"role": "user", "content": "Tell me the weather, please."}
    first = await asker.generate(prompt_of(model, question))
    assert model.decode(first["output_ids"]) == (
        "<think>\nI ask twice.\n</think>\n\nLet me look.\n"
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>\n'
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
    )
    result = {"role": "tool", "content": "the weather is fine"}
    second = await asker.generate(prompt_of(model, question, {"role": "assistant", "content": "…"}, result))
    assert model.decode(second["output_ids"]) == "It rains."


async def test_without_a_cue_no_tool_is_called(engine: Callable[..., Asker], model: Model) -> None:
    asker = engine(loop=LoopOptions(cues=CUES))
    for place in range(20):
        reply = await asker.generate(prompt_of(model, {"role": "user", "content": f"Question {place}"}))
        text = model.decode(reply["output_ids"])
        assert text and "<tool_call>" not in text


async def test_a_reply_that_is_cut_and_sent_again_ends_as_if_it_had_not_been(
    engine: Callable[..., Asker], model: Model
) -> None:
    asker = engine(loop=LoopOptions(cues=CUES))
    prompt = prompt_of(model, {"role": "user", "content": "Tell me the weather, please."})
    whole = (await asker.generate(prompt))["output_ids"]
    part = (await asker.generate(prompt, sampling_params={"max_new_tokens": 9}))["output_ids"]
    rest = (await asker.generate(prompt + part))["output_ids"]
    assert part + rest == whole


def test_a_file_is_read_and_what_is_wrong_in_it_is_named(tmp_path: Path) -> None:
    file = tmp_path / "cues.json"
    file.write_bytes(msgspec.json.encode(CUES))
    assert read_cues(file) == CUES
    for wrong, where in (
        ([{"cue": "x"}], "replies"),
        ([{"cue": "", "replies": []}], "cue: an empty one"),
        ([{"cue": "x", "replies": [{"txt": "y"}]}], "txt"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=where):
            read_cues(file)


def test_cues_that_come_as_json_are_read_and_what_is_wrong_in_them_is_named() -> None:
    assert parse_cues(msgspec.json.encode(CUES)) == CUES
    for wrong, where in ((b"[{", "truncated"), (b'[{"cue": "x"}]', "replies")):
        with pytest.raises(ValueError, match=where):
            parse_cues(wrong)
