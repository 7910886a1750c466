"""A call's events as the Anthropic API's answer, whole and streamed, the same whenever it is given.

Every answer and every event is read by the typed models of the `anthropic` SDK, strictly.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from tests.unit.proxy.dialects.conversations import parts_of

from rolloutfleet_proxy.dialects.anthropic_messages import AnthropicMessages
from rolloutfleet_proxy.dialects.anthropic_messages.encoder import MESSAGE_STOP, PING, MessagesEncoder
from rolloutfleet_proxy.dialects.anthropic_messages.request import MessagesRequest
from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.domain.errors import SessionDeleted
from rolloutfleet_proxy.domain.events import (
    Committed,
    Delta,
    Event,
    Failed,
    Reasoning,
    Started,
    Text,
    ToolCall,
    events_of,
)
from rolloutfleet_proxy.domain.lineage import MAIN
from rolloutfleet_proxy.domain.messages import NO_ARGS, conversation
from rolloutfleet_proxy.domain.turn import Extras, Turn

Json = Any
DIALECT = AnthropicMessages()
EVENT: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "find", "arguments": '{"q": 1, "é": [1.0]}'}},
    {"id": "call_b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
]


def turn(**fields: Any) -> Turn:
    return Turn(
        **{
            "session": 1,
            "number": 2,
            "name": "turn-abc",
            "parent": None,
            "trajectory": None,
            "messages": [],
            "output": {"role": "assistant", "content": "Hello é", "reasoning_content": "So."},
            "prompt_ids": array("i", [9, 9]),
            "prompt_tokens": 7,
            "output_ids": array("i", [1, 2, 3, 4, 5]),
            "logprobs": array("f", [-0.5, -0.25, -1.5, -0.0, -2.0]),
            "versions": [(1, 5)],
            "finish_reason": "stop",
            "mixed_cache": False,
            "branch_reason": None,
            "lineage": MAIN,
            "extras": Extras(),
            "reward": None,
            "created_at": 1_700_000_000.75,
            **fields,
        }
    )


def asked(**fields: Any) -> MessagesRequest:
    body = {"model": "qwen", "max_tokens": 10, "messages": [{"role": "user", "content": "a"}], **fields}
    return DIALECT.read(json.dumps(body).encode(), Reading())


def encoder(request: MessagesRequest | None = None) -> MessagesEncoder:
    return DIALECT.encoder(request or asked(), model="some-model", token_bytes=lambda token_id: b"")


def whole(made: Turn) -> Json:
    data = encoder().whole(Committed(made))
    Message.model_validate_json(data, strict=True, extra="forbid")
    return json.loads(data)


def streamed(happened: Iterable[Event]) -> bytes:
    return b"".join(map(encoder().encode, happened))


def events(data: bytes) -> list[Json]:
    """The events of a stream, each checked, pings left out."""
    found = []
    for chunk in data.replace(PING, b"").decode().split("\n\n")[:-1]:
        name, line = chunk.split("\n")
        event = json.loads(line.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        EVENT.validate_json(line.removeprefix("data: "), strict=True, extra="forbid")
        found.append(event)
    return found


def assembled(stream: Sequence[Json]) -> Json:
    """The message that a client has in the end; the order of the events is checked on the way."""
    start, *parts, delta, stop = stream
    assert (start["type"], delta["type"], stop) == ("message_start", "message_delta", {"type": "message_stop"})
    message = start["message"]
    assert (message["content"], message["stop_reason"], message["stop_sequence"]) == ([], None, None)
    is_open, arguments = False, ""
    for part in parts:
        assert part["index"] == len(message["content"]) - is_open
        if part["type"] == "content_block_start":
            assert not is_open
            message["content"].append(part["content_block"])
            is_open, arguments = True, ""
            continue
        assert is_open
        block = message["content"][-1]
        if part["type"] == "content_block_stop":
            is_open = False
            if block["type"] == "tool_use":
                assert block["input"] == {}
                block["input"] = json.loads(arguments)
            continue
        change = part["delta"]
        kind = change.pop("type").removesuffix("_delta")
        [(field, text)] = change.items()
        assert text and kind == ("input_json" if block["type"] == "tool_use" else block["type"])
        if field == "partial_json":
            arguments += text
        else:
            block[field] += text
    assert not is_open
    message |= delta["delta"]
    message["usage"] |= delta["usage"]
    return message


def test_a_message() -> None:
    assert whole(turn()) == {
        "id": "turn-abc",
        "type": "message",
        "role": "assistant",
        "model": "qwen",
        "content": [
            {"type": "thinking", "thinking": "So.", "signature": ""},
            {"type": "text", "text": "Hello é"},
        ],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 7,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "output_tokens": 5,
        },
    }


def test_tool_uses_without_text() -> None:
    message = whole(turn(output={"content": None, "tool_calls": CALLS}, finish_reason="tool_calls"))
    assert message["stop_reason"] == "tool_use"
    assert message["content"] == [
        {"type": "tool_use", "id": "call_a", "name": "find", "input": {"q": 1, "é": [1.0]}},
        {"type": "tool_use", "id": "call_b", "name": "look", "input": {}},
    ]


def test_an_answer_of_nothing_has_no_block() -> None:
    assert whole(turn(output={"content": ""}))["content"] == []
    assert assembled(events(streamed(events_of(turn(output={"content": ""}))))) == whole(turn(output={"content": ""}))


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("stop", None, "end_turn"),
        ("stop", "END", "stop_sequence"),
        ("length", None, "max_tokens"),
        ("tool_calls", None, "tool_use"),
    ],
)
def test_why_it_stopped(finish: str, stop: str | None, reason: str) -> None:
    message = whole(turn(finish_reason=finish, extras=Extras(stop_sequence=stop)))
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)


def test_tokens_from_the_cache_are_counted_apart() -> None:
    usage = whole(turn(extras=Extras(cached_tokens=3)))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"]) == (4, 3)


def test_a_model_that_was_not_named_is_the_fleets() -> None:
    assert b'"model":"some-model"' in encoder(asked(model=None)).whole(Committed(turn()))


def test_nothing_that_a_client_acts_on_leaves_before_the_commit() -> None:
    made = turn(output={"content": "Hi", "tool_calls": CALLS}, finish_reason="tool_calls")
    *before, committed = events_of(made)
    writer = encoder()
    early = b"".join(map(writer.encode, before))
    assert [event["type"] for event in events(early)] == ["message_start", "content_block_start", "content_block_delta"]
    late = events(writer.encode(committed))
    assert late[0] == {"type": "content_block_stop", "index": 0}
    assert late[-1] == {"type": "message_stop"}


def test_text_behind_a_call_belongs_to_the_text_before_it() -> None:
    made = turn(output={"content": "Hello there", "tool_calls": CALLS[:1]}, finish_reason="tool_calls")
    [call] = [event for event in events_of(made) if isinstance(event, ToolCall)]
    live: list[Event] = [Started(made.name, 1.0, 7), Text("Hello"), call, Text(" there"), Committed(made)]
    assert assembled(events(streamed(live))) == whole(made)


def test_silence_opens_the_stream_and_says_nothing_before_the_prompt_is_made() -> None:
    writer = encoder()
    assert writer.silence() == b""
    assert writer.encode(Started("turn-abc", 1.0, 3)) == b""
    opened = writer.silence()
    assert opened.endswith(PING) and [event["type"] for event in events(opened)] == ["message_start"]
    assert writer.silence() == PING
    assert [event["type"] for event in events(writer.encode(Text("a")))] == [
        "content_block_start",
        "content_block_delta",
    ]


def test_an_answer_that_thinks_again_behind_its_text_comes_back_as_the_message_that_it_was() -> None:
    output = {"role": "assistant", "content": "Hello there", "reasoning_content": "So. Or not."}
    made = turn(output=output, extras=Extras(parts=[3, 5, 8, 6]))
    live: list[Event] = [Started(made.name, 1.0, 7), Reasoning("So."), Text("Hello"), Reasoning(" Or"), Committed(made)]
    assert assembled(events(streamed(live))) == assembled(events(streamed(events_of(made)))) == whole(made)
    blocks = whole(made)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text", "thinking", "text"]
    request = asked(messages=[{"role": "assistant", "content": blocks}, {"role": "user", "content": "On."}])
    theirs, ours = conversation(request.messages[:1], NO_ARGS), conversation([made.output], NO_ARGS)
    assert (theirs.chains, theirs.reasonings) == (ours.chains, ours.reasonings)


def test_empty_deltas_say_nothing() -> None:
    writer = encoder()
    writer.encode(Started("turn-abc", 1.0, 3))
    assert writer.encode(Text("")) == b""


def test_a_stream_that_fails_ends_with_an_error() -> None:
    writer = encoder()
    writer.encode(Started("turn-abc", 1.0, 3))
    writer.encode(Text("a"))
    last = writer.encode(Failed(SessionDeleted("It was deleted.")))
    assert last == (
        b'event: error\ndata: {"type":"error","error":{"type":"not_found_error","message":"It was deleted.",'
        b'"code":"session_deleted","param":null}}\n\n'
    )
    assert MESSAGE_STOP not in last


TEXTS = st.text(max_size=8)
OBJECTS = st.dictionaries(
    st.text(max_size=4), st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=4), max_size=3
)
NEW_CALLS = st.lists(st.tuples(st.sampled_from(["find", "look"]), OBJECTS), max_size=3).map(
    lambda given: [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments, ensure_ascii=bool(index % 2))},
        }
        for index, (name, arguments) in enumerate(given)
    ]
)


def output_of(reasoning: str, content: str, calls: list[Json]) -> Json:
    output: Json = {"role": "assistant", "content": content or (None if calls else "")}
    return output | ({"reasoning_content": reasoning} if reasoning else {}) | ({"tool_calls": calls} if calls else {})


@given(reasoning=TEXTS, content=TEXTS, calls=NEW_CALLS)
def test_an_answer_comes_back_as_the_message_that_it_was(reasoning: str, content: str, calls: list[Json]) -> None:
    made = turn(output=output_of(reasoning, content, calls))
    blocks = whole(made)["content"]
    request = asked(messages=[{"role": "assistant", "content": blocks}, {"role": "user", "content": "On."}])
    theirs, ours = conversation(request.messages[:1], NO_ARGS), conversation([made.output], NO_ARGS)
    assert (theirs.chains, theirs.reasonings) == (ours.chains, ours.reasonings)
    assert (request.ignored, request.stripped) == ((), ())


@given(data=st.data(), reasoning=TEXTS, content=TEXTS, calls=NEW_CALLS)
def test_however_a_stream_is_cut_it_is_the_whole_message(
    data: st.DataObject, reasoning: str, content: str, calls: list[Json]
) -> None:
    made = turn(output=output_of(reasoning, content, calls), finish_reason="tool_calls" if calls else "stop")
    deltas: list[Event] = []
    for kind, text in ((Reasoning, reasoning), (Text, content)):
        cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
        deltas += [kind(text[start:end]) for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    said = [event for event in events_of(made) if isinstance(event, ToolCall)]
    known = data.draw(st.integers(0, len(deltas)))
    if not said:
        known = len(deltas)
    live: list[Event] = [Started(made.name, 1.0, 7), *deltas[:known], *said, *deltas[known:], Committed(made)]
    stream = events(streamed(live))
    if known >= 4 or not reasoning:  # else thinking would go on behind a call
        assert assembled(stream) == whole(made)
    assert assembled(events(streamed(events_of(made)))) == whole(made)


@given(
    parts=st.lists(st.tuples(st.sampled_from([Reasoning, Text]), st.text(min_size=1, max_size=4)), max_size=6),
    calls=NEW_CALLS,
    data=st.data(),
)
def test_in_whatever_order_it_came_a_stream_is_the_whole_message_and_comes_back_as_the_turns(
    parts: list[tuple[type[Reasoning | Text], str]], calls: list[Json], data: st.DataObject
) -> None:
    deltas: list[Delta] = [kind(text) for kind, text in parts]
    reasoning, content = ("".join(text for kind, text in parts if kind is each) for each in (Reasoning, Text))
    made = turn(
        output=output_of(reasoning, content, calls),
        extras=Extras(parts=parts_of(deltas)),
        finish_reason="tool_calls" if calls else "stop",
    )
    said = [event for event in events_of(made) if isinstance(event, ToolCall)]
    known = data.draw(st.integers(0, len(deltas)))
    live: list[Event] = [Started(made.name, 1.0, 7), *deltas[:known], *said, *deltas[known:], Committed(made)]
    answer = whole(made)
    assert assembled(events(streamed(live))) == assembled(events(streamed(events_of(made)))) == answer
    request = asked(messages=[{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "On."}])
    theirs, ours = conversation(request.messages[:1], NO_ARGS), conversation([made.output], NO_ARGS)
    assert (theirs.chains, theirs.reasonings) == (ours.chains, ours.reasonings)


def test_numbers_that_json_has_not_are_null() -> None:
    said = '{"q": NaN, "é": [-Infinity, "NaN"]}'
    call = {"id": "call_a", "type": "function", "function": {"name": "find", "arguments": said}}
    made = turn(output={"role": "assistant", "content": None, "tool_calls": [call]}, finish_reason="tool_calls")
    assert whole(made)["content"][0]["input"] == {"q": None, "é": [None, "NaN"]}
    partial = next(line for line in streamed(events_of(made)).decode().splitlines() if "partial_json" in line)
    assert json.loads(json.loads(partial[6:])["delta"]["partial_json"])["q"] is None
