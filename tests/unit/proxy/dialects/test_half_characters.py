"""Half a character is read as U+FFFD in what is said, and refused in what names something: alike in every dialect."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.dialects.anthropic_messages.request import parse_messages
from rolloutfleet_proxy.dialects.base import Reading, TurnRequest
from rolloutfleet_proxy.dialects.half_characters import mended
from rolloutfleet_proxy.dialects.openai_chat.request import parse_chat
from rolloutfleet_proxy.dialects.openai_responses.request import parse_responses
from rolloutfleet_proxy.domain.errors import InvalidRequest

Json = Any
HALF = "a\ud83d"
READ = "a\N{REPLACEMENT CHARACTER}"
WHOLE = "\N{GRINNING FACE}"
PARSE: dict[str, Callable[[bytes, Reading], TurnRequest]] = {
    "chat": parse_chat,
    "messages": parse_messages,
    "responses": parse_responses,
}


def call(name: str = "f", call_id: str = "c1", arguments: str = "{}") -> Json:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def called(call_id: str = "c1", name: str = "f", given: Json = None) -> Json:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": call_id, "name": name, "input": given or {}}]}


def result(content: Json, call_id: str = "c1") -> Json:
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call_id, "content": content}]}


def function(**fields: Json) -> Json:
    return {"name": "f", "parameters": {"type": "object", "properties": {}}, **fields}


FUNCTION = {"type": "function", **function()}
USER = {"role": "user", "content": "hello"}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "done"}
CALLED = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}

SAID: list[tuple[str, Json, str]] = [
    ("chat", {"messages": [{"role": "user", "content": HALF}]}, "messages[0].content"),
    (
        "chat",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]},
        "messages[0].content[0].text",
    ),
    (
        "chat",
        {"messages": [USER, {"role": "assistant", "content": "", "reasoning_content": HALF}]},
        "messages[1].reasoning_content",
    ),
    (
        "chat",
        {"messages": [USER, {"role": "assistant", "tool_calls": [call(arguments=HALF)]}]},
        "messages[1].tool_calls[0].function.arguments",
    ),
    (
        "chat",
        {"messages": [USER], "tools": [{"type": "function", "function": function(description=HALF)}]},
        "tools[0].function.description",
    ),
    ("messages", {"system": HALF, "messages": [USER]}, "system"),
    ("messages", {"system": [{"type": "text", "text": HALF}], "messages": [USER]}, "system[0].text"),
    ("messages", {"messages": [USER, called(), result(HALF)]}, "messages[2].content[0].content"),
    (
        "messages",
        {"messages": [USER, called(given={"a": [HALF]}), result("x")]},
        "messages[1].content[0].input.a[0]",
    ),
    (
        "messages",
        {"messages": [USER], "tools": [{"name": "f", "input_schema": {"type": "object"}, "description": HALF}]},
        "tools[0].description",
    ),
    ("responses", {"input": HALF}, "input"),
    ("responses", {"input": "x", "instructions": HALF}, "instructions"),
    ("responses", {"input": [USER, CALLED, {**OUTPUT, "output": HALF}]}, "input[2].output"),
    (
        "responses",
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": HALF}]}]},
        "input[0].content[0].text",
    ),
    (
        "responses",
        {"input": "x", "tools": [{"type": "function", **function(description=HALF)}]},
        "tools[0].description",
    ),
]
NAMED: list[tuple[str, Json, str | None]] = [
    ("chat", {"messages": [USER], "user": HALF}, "user"),
    ("chat", {"messages": [USER], "stop": [HALF]}, "stop[0]"),
    ("chat", {"messages": [USER], HALF: 1}, None),
    ("chat", {"messages": [{**USER, "name": HALF}]}, "messages[0].name"),
    ("chat", {"messages": [{**USER, HALF: 1}]}, "messages[0]"),
    ("chat", {"messages": [{**USER, "role": HALF}]}, "messages[0].role"),
    (
        "chat",
        {"messages": [USER, {"role": "assistant", "tool_calls": [call(call_id=HALF)]}]},
        "messages[1].tool_calls[0].id",
    ),
    (
        "chat",
        {"messages": [USER], "tools": [{"type": "function", "function": function(name=HALF)}]},
        "tools[0].function.name",
    ),
    ("messages", {"messages": [USER, called(call_id=HALF), result("x")]}, "messages[1].content[0].id"),
    ("messages", {"messages": [USER, called(given={HALF: 1}), result("x")]}, "messages[1].content[0].input"),
    ("messages", {"messages": [USER], "stop_sequences": [HALF]}, "stop_sequences[0]"),
    ("responses", {"input": [USER, {**CALLED, "call_id": HALF}]}, "input[1].call_id"),
    ("responses", {"input": "x", "metadata": {"a": HALF}}, "metadata.a"),
    (
        "responses",
        {"input": "x", "tools": [{**FUNCTION, "parameters": {HALF: 1}}]},
        "tools[0].parameters",
    ),
]


def written(dialect: str, body: Json) -> list[bytes]:
    """The body with half a character as an escape, and as bytes that break off."""
    whole = {"max_tokens": 9, **body} if dialect == "messages" else body
    escaped = json.dumps(whole).encode()
    return [escaped, escaped.replace(b"\\ud83d", WHOLE.encode()[:2]), escaped.replace(b"\\ud83d", WHOLE.encode()[1:])]


def parsed(dialect: str, body: bytes, *, strict: bool = False) -> TurnRequest:
    return PARSE[dialect](body, Reading(strict=strict))


@pytest.mark.parametrize(("dialect", "body", "path"), SAID)
def test_half_a_character_is_read_as_a_replacement_character_where_something_is_said(
    dialect: str, body: Json, path: str
) -> None:
    [plain, *_] = written(dialect, json.loads(json.dumps(body).replace("\\ud83d", "\\ufffd")))
    expected = parsed(dialect, plain)
    for data in written(dialect, body):
        request = parsed(dialect, data)
        assert request.ignored == (*expected.ignored, path)
        assert (request.messages, request.template) == (expected.messages, expected.template)
        with pytest.raises(InvalidRequest) as refused:
            parsed(dialect, data, strict=True)
        assert refused.value.param == path and "half a character" in refused.value.message


@pytest.mark.parametrize(("dialect", "body", "path"), NAMED)
def test_half_a_character_is_refused_in_names_and_elsewhere(dialect: str, body: Json, path: str | None) -> None:
    for data in written(dialect, body):
        with pytest.raises(InvalidRequest, match="half a character") as refused:
            parsed(dialect, data)
        assert refused.value.param == path


@pytest.mark.parametrize("dialect", PARSE)
def test_byte_order_mark_is_passed_over(dialect: str) -> None:
    name = "input" if dialect == "responses" else "messages"
    [plain, *_] = written(dialect, {name: [USER]})
    assert parsed(dialect, b"\xef\xbb\xbf" + plain) == parsed(dialect, plain)
    [half, *_] = written(
        dialect, {"input": HALF} if dialect == "responses" else {"messages": [{**USER, "content": HALF}]}
    )
    assert parsed(dialect, b"\xef\xbb\xbf" + half).ignored
    with pytest.raises(InvalidRequest):
        parsed(dialect, b"\xef\xbb\xbf" * 2 + plain)


TEXT = st.text(st.characters() | st.characters(categories=["Cs"]) | st.sampled_from('\\"u\n'))
NUMBER = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)


@given(text=TEXT, escaped=st.booleans(), others=st.dictionaries(st.text(), NUMBER | st.text() | st.none()))
def test_mended_body_differs_in_its_halves_alone(text: str, escaped: bool, others: Json) -> None:
    body = {**others, "messages": [{"content": text, "others": others}]}
    data = json.dumps(body, ensure_ascii=escaped).encode(errors="surrogatepass")
    whole, paths = mended(data)
    assert mended(data) == (whole, paths), "a retry is the same request"
    assert mended(whole) == (whole, []), "and so is what it became"
    read = json.loads(whole)
    assert read.keys() == body.keys()
    assert read["messages"][0]["others"] == others
    # Escapes of two halves of one character are that character.
    said = json.loads(json.dumps(text)) if escaped else text
    has_halves = any("\ud800" <= letter <= "\udfff" for letter in said)
    assert paths == (["messages[0].content"] if has_halves else [])
    letters = [letter for letter in said if not "\ud800" <= letter <= "\udfff"]
    kept = read["messages"][0]["content"]
    assert [letter for letter in kept if letter != READ[1]] == [letter for letter in letters if letter != READ[1]]
