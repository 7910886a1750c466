"""The ids of prompt and output in answers that ask for them, once the turn is committed."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable
from typing import Any

import pytest
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES, call
from tests.unit.proxy.dialects.openai_responses.responses import TEXTS, turn

from rolloutfleet_proxy.dialects.base import Dialect, Encoder, Reading, TurnRequest
from rolloutfleet_proxy.domain.errors import InvalidRequest
from rolloutfleet_proxy.domain.events import Committed, Event, Reasoning, Started, Text, Tokens, ToolCall, events_of
from rolloutfleet_proxy.domain.turn import Turn

Json = Any
PROMPT = array("i", [101, 102, 103, 104, 105, 9, 9])
"""Of which the turn's own row has the last two alone."""
OUTPUT = [1, 2, 3, 4, 5]
LOGPROBS = [-0.5, -0.25, -1.5, -0.0, -2.0]
BODIES: dict[str, Json] = {
    CHAT.name: {"messages": [{"role": "user", "content": "a"}]},
    RESPONSES.name: {"input": "a"},
    MESSAGES.name: {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9},
}
OF_CHOICE = {"token_ids": OUTPUT, "prompt_token_ids": PROMPT.tolist(), "response_token_ids": OUTPUT}
OF_ITEM = {
    "prompt_token_ids": PROMPT.tolist(),
    "generation_token_ids": OUTPUT,
    "generation_log_probs": LOGPROBS,
}
CALLS = [call("find", '{"q": 1}', "call_a"), call("look", "{}", "call_b")]
ANSWERS: dict[str, Json] = {
    "text": {"role": "assistant", "content": "Hello é"},
    "thinking": {"role": "assistant", "content": "Hello é", "reasoning_content": "So."},
    "thinking-alone": {"role": "assistant", "content": "", "reasoning_content": "So."},
    "calls": {"role": "assistant", "content": None, "tool_calls": CALLS},
    "text-and-calls": {"role": "assistant", "content": "Hello é", "tool_calls": CALLS},
}


def asked(dialect: Dialect[Any], **fields: Json) -> TurnRequest:
    body = {**BODIES[dialect.name], "return_token_ids": True, **fields}
    request: TurnRequest = dialect.read(json.dumps(body).encode(), Reading())
    return request


def encoder(dialect: Dialect[Any], request: TurnRequest) -> Encoder:
    return dialect.encoder(request, model="some-model", token_bytes=TEXTS.__getitem__)


def happened(made: Turn) -> list[Event]:
    """As it comes from the engine, token by token."""
    tokens = Tokens(OUTPUT, LOGPROBS)
    said = [event for event in events_of(made) if isinstance(event, Reasoning | Text | ToolCall)]
    return [Started(made.name, made.created_at, len(PROMPT)), *said, Text("", tokens), Committed(made, PROMPT)]


def events(data: bytes) -> list[Json]:
    lines = [line.removeprefix("data: ") for line in data.decode().splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def streamed(dialect: Dialect[Any], what: Iterable[Event], **fields: Json) -> list[Json]:
    writer = encoder(dialect, asked(dialect, stream=True, **fields))
    return events(b"".join(map(writer.encode, what)))


@pytest.mark.parametrize("output", ANSWERS.values(), ids=ANSWERS)
def test_chat_has_them_in_the_words_of_vllm_and_of_sglang(output: Json) -> None:
    made = turn(output=output)
    answer = json.loads(encoder(CHAT, asked(CHAT)).whole(Committed(made, PROMPT)))
    [choice] = answer["choices"]
    assert answer["prompt_token_ids"] == PROMPT.tolist()
    assert {name: choice[name] for name in OF_CHOICE} == OF_CHOICE


@pytest.mark.parametrize("include_usage", [False, True])
def test_a_stream_of_chat_has_them_in_the_chunk_that_ends_the_answer(include_usage: bool) -> None:
    options = {"stream_options": {"include_usage": include_usage}}
    chunks = streamed(CHAT, happened(turn()), **options)
    [end] = [chunk for chunk in chunks if chunk["choices"] and chunk["choices"][0]["finish_reason"]]
    assert end["prompt_token_ids"] == PROMPT.tolist()
    assert {name: end["choices"][0][name] for name in OF_CHOICE} == OF_CHOICE
    assert all("token_ids" not in json.dumps(chunk) for chunk in chunks if chunk is not end)
    assert ("usage" in end) == include_usage


def test_chat_has_the_log_probability_of_each_id_beside_them() -> None:
    answer = json.loads(encoder(CHAT, asked(CHAT, logprobs=True)).whole(Committed(turn(), PROMPT)))
    [choice] = answer["choices"]
    assert [each["logprob"] for each in choice["logprobs"]["content"]] == LOGPROBS
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])


@pytest.mark.parametrize("output", ANSWERS.values(), ids=ANSWERS)
def test_the_last_item_of_a_response_has_them_and_no_other(output: Json) -> None:
    made = turn(output=output)
    answer = json.loads(encoder(RESPONSES, asked(RESPONSES)).whole(Committed(made, PROMPT)))
    *others, last = answer["output"]
    assert {name: last[name] for name in OF_ITEM} == OF_ITEM
    assert all(not OF_ITEM.keys() & item.keys() for item in others)


@pytest.mark.parametrize("output", ANSWERS.values(), ids=ANSWERS)
def test_a_stream_of_responses_has_them_where_the_item_ends(output: Json) -> None:
    made = turn(output=output)
    told = streamed(RESPONSES, happened(made))
    whole = json.loads(encoder(RESPONSES, asked(RESPONSES, stream=True)).whole(Committed(made, PROMPT)))
    assert told[-1]["response"] == whole
    done = [event["item"] for event in told if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    others = [event for event in told[:-1] if event["type"] != "response.output_item.done"]
    assert all("token_ids" not in json.dumps(event) for event in others)


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=lambda each: each.name)
@pytest.mark.parametrize("output", ANSWERS.values(), ids=ANSWERS)
def test_no_id_leaves_before_the_commit(dialect: Dialect[Any], output: Json) -> None:
    writer = encoder(dialect, asked(dialect, stream=True))
    *before, _ = happened(turn(output=output))
    sent = b"".join(map(writer.encode, before))
    assert b"token_ids" not in sent and b"log_probs" not in sent and b"101" not in sent


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=lambda each: each.name)
def test_who_does_not_ask_gets_none_to_the_byte(dialect: Dialect[Any]) -> None:
    for fields in ({"return_token_ids": False}, {"return_token_ids": None}):
        silent = encoder(dialect, asked(dialect, **fields))
        never = encoder(dialect, dialect.read(json.dumps(BODIES[dialect.name]).encode(), Reading()))
        assert silent.whole(Committed(turn(), PROMPT)) == never.whole(Committed(turn()))


@pytest.mark.parametrize("dialect", [CHAT, RESPONSES], ids=lambda each: each.name)
def test_they_are_asked_for_with_true_or_false(dialect: Dialect[Any]) -> None:
    with pytest.raises(InvalidRequest) as refused:
        asked(dialect, return_token_ids="yes")
    assert refused.value.param == "return_token_ids"
    assert asked(dialect).ignored == ()


def test_the_anthropic_api_has_no_place_for_them_and_says_so() -> None:
    assert asked(MESSAGES).ignored == ("return_token_ids",)


def test_an_item_that_is_sent_back_with_them_is_read_as_without() -> None:
    answer = json.loads(encoder(RESPONSES, asked(RESPONSES)).whole(Committed(turn(), PROMPT)))
    again = asked(RESPONSES, input=[*answer["output"], {"role": "user", "content": "b"}])
    assert again.ignored == ()
    assert again.messages[0] == {"role": "assistant", "content": "Hello é", "reasoning_content": "So."}
