"""A call's events as the OpenAI API's answer, whole and streamed, the same whenever it is given."""

import json
from array import array
from collections.abc import Iterable
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.dialects.openai_chat import OpenAIChat
from rolloutfleet_proxy.dialects.openai_chat.encoder import DONE, ChatEncoder
from rolloutfleet_proxy.dialects.openai_chat.request import ChatRequest
from rolloutfleet_proxy.domain.events import Committed, Event, Reasoning, Started, Text, Tokens, ToolCall, events_of
from rolloutfleet_proxy.domain.lineage import MAIN
from rolloutfleet_proxy.domain.turn import Extras, Turn

TEXTS = {1: b"Hel", 2: b"lo ", 3: "é".encode()[:1], 4: "é".encode()[1:], 5: b"<|im_end|>", 6: b"Hey"}
CALLS = [
    {"id": "call_a", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}},
    {"id": "call_b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
]
CHAT = OpenAIChat()


def turn(**fields: Any) -> Turn:
    return Turn(
        **{
            "session": 1,
            "number": 2,
            "name": "t0-abc",
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


def asked(**fields: Any) -> ChatRequest:
    return CHAT.read(json.dumps({"messages": [{"role": "user", "content": "a"}], **fields}).encode(), Reading())


def encoder(request: ChatRequest) -> ChatEncoder:
    return CHAT.encoder(request, model="some-model", token_bytes=TEXTS.__getitem__)


def whole(made: Turn, request: ChatRequest) -> bytes:
    return encoder(request).whole(Committed(made))


def streamed(happened: Iterable[Event], request: ChatRequest) -> bytes:
    return b"".join(map(encoder(request).encode, happened))


def completion(made: Turn, request: ChatRequest) -> ChatCompletion:
    return ChatCompletion.model_validate_json(whole(made, request), strict=True)


def events(data: bytes) -> list[dict[str, Any]]:
    *chunks, last, end = data.split(b"\n\n")
    assert (last + b"\n\n", end) == (DONE, b"")
    for chunk in chunks:
        assert chunk.startswith(b"data: ")
        ChatCompletionChunk.model_validate_json(chunk[6:], strict=True)
    return [json.loads(chunk[6:]) for chunk in chunks]


def message_of(chunks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client that joins the deltas has in the end."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for chunk in chunks:
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            message["reasoning_content"] += delta.get("reasoning_content") or ""
            for call in delta.get("tool_calls") or ():
                assert call.pop("index") == len(message["tool_calls"])
                message["tool_calls"].append(call)
    return message


def test_a_completion() -> None:
    answer = completion(turn(), asked())
    assert (answer.id, answer.object, answer.created, answer.model) == (
        "t0-abc",
        "chat.completion",
        1_700_000_000,
        "some-model",
    )
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason, choice.logprobs) == (0, "stop", None)
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", "Hello é", None)
    assert choice.message.model_extra == {"reasoning_content": "So."}
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (7, 5, 12)
    assert answer.usage.prompt_tokens_details is None


def test_tool_calls_without_text() -> None:
    answer = completion(turn(output={"tool_calls": CALLS}, finish_reason="tool_calls"), asked())
    [choice] = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert [call.model_dump() for call in choice.message.tool_calls or ()] == CALLS


def test_cached_tokens() -> None:
    answer = completion(turn(extras=Extras(cached_tokens=3)), asked())
    assert answer.usage is not None
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == 3


def test_logprobs_have_an_entry_for_every_sampled_token() -> None:
    rows: list[list[tuple[float, int]]] = [[(-0.5, 1), (-0.75, 6)], [], [], [], []]
    answer = completion(turn(extras=Extras(top_logprobs=rows)), asked(logprobs=True, top_logprobs=2))
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert [entry.logprob for entry in logprobs.content] == [-0.5, -0.25, -1.5, -0.0, -2.0]
    assert [entry.token for entry in logprobs.content] == ["Hel", "lo ", "\ufffd", "\ufffd", "<|im_end|>"]
    assert b"".join(bytes(entry.bytes or ()) for entry in logprobs.content).decode() == "Hello é<|im_end|>"
    assert [(top.token, top.logprob) for top in logprobs.content[0].top_logprobs] == [("Hel", -0.5), ("Hey", -0.75)]
    assert logprobs.content[1].top_logprobs == []


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_given_again_joins_to_the_message(usage: bool) -> None:
    made = turn(
        output={"content": "Hello é", "reasoning_content": "So.", "tool_calls": CALLS}, finish_reason="tool_calls"
    )
    request = asked(stream=True, stream_options={"include_usage": usage})
    chunks = events(streamed(events_of(made), request))

    assert message_of(chunks) == made.output
    assert {chunk["id"] for chunk in chunks} == {"t0-abc"}
    assert {chunk["created"] for chunk in chunks} == {1_700_000_000}
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert reasons == [None] * (len(reasons) - 1) + ["tool_calls"]
    if usage:
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == json.loads(whole(made, asked()))["usage"]
    else:
        assert all("usage" not in chunk for chunk in chunks)


def test_a_stream_has_the_logprobs_of_the_whole() -> None:
    made, request = turn(), asked(stream=True, logprobs=True)
    expected = json.loads(whole(made, asked(logprobs=True)))["choices"][0]["logprobs"]["content"]
    live: list[Event] = [
        Started(made.name, made.created_at, made.prompt_tokens),
        Text("", Tokens(made.output_ids[:2], made.logprobs[:2])),
        Text("Hello é", Tokens(made.output_ids[2:], made.logprobs[2:])),
        Committed(made),
    ]
    begun = [Started(made.name, made.created_at, made.prompt_tokens), *events_of(made, begun=True)]
    for happened in (events_of(made), live, begun):
        data = streamed(happened, request)
        content = [
            entry
            for chunk in events(data)
            for choice in chunk["choices"]
            for entry in (choice["logprobs"] or {"content": []})["content"]
        ]
        assert content == expected


def test_deltas_as_they_come() -> None:
    made = turn(output={"content": "Hello é", "reasoning_content": "So.", "tool_calls": CALLS[:1]})
    live: list[Event] = [
        Started(made.name, made.created_at, made.prompt_tokens),
        Reasoning("So."),
        Text("Hello é"),
        ToolCall(0, "call_a", "find", '{"q": 1}'),
        Committed(made),
    ]
    request = asked(stream=True)
    assert message_of(events(streamed(live, request))) == made.output
    # Deltas of whole parts are what a stream that is given again sends, to the byte.
    assert streamed(live, request) == streamed(events_of(made), request)


def test_nothing_leaves_before_something_is_said() -> None:
    writer = encoder(asked(stream=True))
    assert writer.encode(Started("t", 1.0, 3)) == b""
    first, second = writer.encode(Text("a")), writer.encode(Text("b"))
    assert [chunk["choices"][0]["delta"] for chunk in events(first + second + DONE)] == [
        {"role": "assistant", "content": ""},
        {"content": "a"},
        {"content": "b"},
    ]


def test_the_same_turn_gives_the_same_bytes() -> None:
    request = asked(logprobs=True, top_logprobs=1)
    extras = Extras(top_logprobs=[[(-0.5, 1)]] * 5, cached_tokens=3)
    stored = Extras.decode(extras.encode())
    assert whole(turn(extras=extras), request) == whole(turn(extras=stored), request)
    assert streamed(events_of(turn(extras=extras)), request) == streamed(events_of(turn(extras=stored)), request)
