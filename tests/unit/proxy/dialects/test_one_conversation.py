"""One conversation is the same by each dialect: one digest, and one canonical form, which is no dialect's JSON."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.dialects.conversations import (
    MESSAGES,
    RESPONSES,
    TOOLS,
    USER,
    WRITTEN,
    Json,
    as_blocks,
    as_items,
    conversations,
    objects,
    read,
    sent_back,
    texts,
)
from tests.unit.proxy.dialects.openai_responses.responses import turn

from rolloutfleet_proxy.dialects.base import Dialect, TurnRequest
from rolloutfleet_proxy.domain.events import Committed
from rolloutfleet_proxy.domain.messages import Conversation, Message, conversation

FIELDS = {
    "system": {"role", "content"},
    "user": {"role", "content"},
    "assistant": {"role", "content", "reasoning_content", "tool_calls"},
    "tool": {"role", "tool_call_id", "content"},
}
"""What a canonical message has."""


def compared(request: TurnRequest) -> Conversation:
    return conversation(request.messages, request.template)


def is_canonical(message: Message) -> bool:
    """Texts, and tool calls with JSON text: nothing else."""
    calls = message.get("tool_calls", [])
    return (
        message.keys() <= FIELDS[message["role"]]
        and isinstance(message["content"], str | None)
        and isinstance(message.get("reasoning_content", ""), str)
        and all(each.keys() == {"id", "type", "function"} for each in calls)
        and all(each["function"].keys() == {"name", "arguments"} for each in calls)
        and all(isinstance(text, str) for each in calls for text in each["function"].values())
    )


@given(conversations())
def test_one_conversation_has_one_digest_by_each_dialect(messages: list[Message]) -> None:
    requests = [read(dialect, write(messages)) for dialect, write in WRITTEN]
    first, *others = map(compared, requests)
    assert others == [first, first]
    assert [request.template for request in requests] == [requests[0].template] * 3
    assert [request.ignored + request.stripped for request in requests] == [()] * 3


@given(conversations())
def test_a_canonical_message_holds_no_dialects_json(messages: list[Message]) -> None:
    for dialect, write in WRITTEN:
        request = read(dialect, write(messages))
        assert all(map(is_canonical, request.messages))
        assert [tool["function"] for tool in request.template.tools or ()] == TOOLS


# Every kind of block and item, read, written and read again

noise = st.sampled_from([{}, {"cache_control": {"type": "ephemeral"}}, {"citations": None}])
statuses = st.sampled_from([{}, {"status": "completed"}, {"status": "in_progress"}, {"id": "x_1"}])


def text_blocks(kind: str = "text") -> st.SearchStrategy[Json]:
    return st.builds(lambda text, more: {"type": kind, "text": text, **more}, texts, noise)


def block_lists(*kinds: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
    return st.lists(st.one_of(*kinds), min_size=1, max_size=4)


documents = st.builds(
    lambda text, head: {
        "type": "document",
        "source": {"type": "text", "data": text, "media_type": "text/plain"},
        **head,
    },
    texts,
    st.fixed_dictionaries({}, optional={"title": texts, "context": texts}),
)
searches = st.builds(
    lambda text: {"type": "search_result", "source": "s", "title": "t", "content": [{"type": "text", "text": text}]},
    texts,
)
references = st.builds(lambda name: {"type": "tool_reference", "tool_name": name}, texts)
of_tools = st.builds(
    lambda content, more: {"type": "tool_result", "tool_use_id": "call_a", "content": content, **more},
    texts | st.just([]) | block_lists(text_blocks(), documents, searches, references),
    noise,
)
of_users = texts | block_lists(text_blocks(), documents, searches, of_tools)
of_assistants = texts | block_lists(
    text_blocks(),
    st.builds(
        lambda text, by: {"type": "thinking", "thinking": text, "signature": by}, texts, st.sampled_from(["", "x"])
    ),
    st.builds(lambda data: {"type": "redacted_thinking", "data": data}, texts),
    st.builds(
        lambda given, more: {"type": "tool_use", "id": "call_a", "name": "find", "input": given, **more}, objects, noise
    ),
    st.just({"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}}),
)
in_messages = st.lists(
    st.builds(lambda content: {"role": "user", "content": content}, of_users)
    | st.builds(lambda content: {"role": "assistant", "content": content}, of_assistants)
    | st.builds(lambda content: {"role": "system", "content": content}, texts | block_lists(text_blocks())),
    max_size=4,
)


@given(in_messages)
def test_every_block_of_messages_comes_back_as_it_was_read(said: Json) -> None:
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}, *said, {"role": "user", "content": "z"}]}
    first = read(MESSAGES, body)
    assert all(map(is_canonical, first.messages))
    written = [
        {"role": "user" if message["role"] == "tool" else message["role"], "content": as_blocks(message)}
        for message in first.messages
    ]
    again = read(MESSAGES, body | {"messages": written})
    assert compared(again) == compared(first)
    assert (again.ignored, again.stripped) == ((), ())


def parts(*kinds: str) -> st.SearchStrategy[Json]:
    return texts | st.lists(
        st.builds(lambda kind, text: {"type": kind, "text": text}, st.sampled_from(kinds), texts),
        min_size=1,
        max_size=3,
    )


in_items = st.lists(
    st.builds(
        lambda role, content, more: {"role": role, "content": content, **more},
        st.sampled_from(["user", "system", "assistant"]),
        parts("input_text", "output_text"),
        statuses,
    )
    | st.builds(
        lambda content, more: {
            "type": "reasoning",
            "summary": [],
            "content": content,
            "encrypted_content": None,
            **more,
        },
        st.lists(st.builds(lambda text: {"type": "reasoning_text", "text": text}, texts), max_size=2),
        statuses,
    )
    | st.builds(
        lambda given, space, more: {
            "type": "function_call",
            "call_id": "call_a",
            "name": "find",
            "arguments": json.dumps(given),
            **space,
            **more,
        },
        objects,
        st.sampled_from([{}, {"namespace": "agents"}]),
        statuses,
    )
    | st.builds(
        lambda text, more: {"type": "custom_tool_call", "call_id": "call_a", "name": "patch", "input": text, **more},
        texts,
        statuses,
    )
    | st.builds(
        lambda kind, output, more: {"type": kind, "call_id": "call_a", "output": output, **more},
        st.sampled_from(["function_call_output", "custom_tool_call_output"]),
        parts("input_text"),
        statuses,
    ),
    min_size=1,
    max_size=6,
)


@given(in_items)
def test_every_item_of_responses_comes_back_as_it_was_read(items: Json) -> None:
    first = read(RESPONSES, {"input": [*items, {"role": "user", "content": "z"}]})
    assert all(map(is_canonical, first.messages))
    assert first.ignored == ()
    written = [item for message in first.messages for item in as_items(message)]
    assert compared(read(RESPONSES, {"input": written})) == compared(first)


@pytest.mark.parametrize(("dialect", "write"), WRITTEN, ids=[dialect.name for dialect, _ in WRITTEN])
@given(messages=conversations())
def test_an_answer_that_is_sent_back_is_the_turns_message(
    dialect: Dialect[Any], write: Any, messages: list[Message]
) -> None:
    for answer in messages:
        if answer["role"] != "assistant":
            continue
        made = turn(output=answer, finish_reason="tool_calls" if "tool_calls" in answer else "stop")
        encoder = dialect.encoder(read(dialect, write(messages)), model="m", token_bytes=lambda token: b"")
        back = read(dialect, sent_back(dialect, json.loads(encoder.whole(Committed(made)))))
        assert compared(back) == conversation([USER, answer, USER], back.template)
