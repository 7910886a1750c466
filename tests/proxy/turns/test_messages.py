"""Which messages count as the same (design.md, a turn, step 2)."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.turns.messages import (
    NO_ARGS,
    TemplateArgs,
    append,
    conversation,
    digest,
    joined_text,
    reasoning_digest,
)


def call(arguments: Any, **fields: Any) -> dict[str, Any]:
    return {
        "role": "assistant",
        "content": "looking",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "find", "arguments": arguments}, **fields}
        ],
    }


EQUAL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "absent and null": (
        {"role": "assistant", "content": "a"},
        {"role": "assistant", "content": "a", "refusal": None},
    ),
    "empty string and null": ({"role": "assistant", "content": ""}, {"role": "assistant", "content": None}),
    "empty list and absent": (
        {"role": "assistant", "content": "a", "tool_calls": []},
        {"role": "assistant", "content": "a"},
    ),
    "text parts": (
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "ab"},
    ),
    "empty text parts": ({"role": "user", "content": [{"type": "text", "text": ""}]}, {"role": "user"}),
    "a moved cache hint": (
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "a"},
    ),
    "reasoning": (
        {"role": "assistant", "content": "a", "reasoning_content": "why"},
        {"role": "assistant", "content": "a"},
    ),
    "arguments as object": (call('{"q": "x", "n": 1}'), call({"n": 1, "q": "x"})),
    "whole floats": (call('{"n": 1.0}'), call('{"n": 1}')),
    "spaces in arguments": (call('{"n":1}'), call('{ "n" : 1 }')),
    "tool call index": (call("{}"), call("{}", index=3)),
    "null in a tool call": (call("{}"), call("{}", extra=None)),
    "order of fields": ({"role": "user", "content": "a"}, {"content": "a", "role": "user"}),
}

DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "content": ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
    "role": ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}),
    "a field in the text": (
        {"role": "user", "content": 'a","mood":"odd'},
        {"role": "user", "content": "a", "mood": "odd"},
    ),
    "a NUL in the text": ({"role": "user", "content": "\0a"}, {"role": "user", "content": "a"}),
    "text and an empty field of that text": ({"role": "user", "content": "a"}, {"role": "user", "a": "content"}),
    "unknown field": ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "mood": "odd"}),
    "false and absent": ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "mood": False}),
    "arguments": (call('{"n": 1}'), call('{"n": 2}')),
    "text and number in arguments": (call('{"n": 1}'), call('{"n": "1"}')),
    "invalid JSON compares as text": (call("{n: 1}"), call("{n:  1}")),
    "text that is no JSON, and a JSON string": (call("oops"), call('"oops"')),
    "tool call id": (call("{}"), call("{}", id="c2")),
    "parts with an image": (
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "x"}}],
        },
        {"role": "user", "content": "a"},
    ),
    "fractions": (call('{"n": 1.5}'), call('{"n": 1}')),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal(name: str) -> None:
    one, other = EQUAL[name]
    assert digest(one) == digest(other)
    assert len(digest(one)) == 16


@pytest.mark.parametrize("name", DIFFERENT)
def test_different(name: str) -> None:
    one, other = DIFFERENT[name]
    assert digest(one) != digest(other)


def test_reasoning_is_digested_apart() -> None:
    assert reasoning_digest({"role": "assistant"}) is None
    assert reasoning_digest({"role": "assistant", "reasoning_content": ""}) is None
    assert reasoning_digest({"role": "assistant", "reasoning_content": None, "reasoning": []}) is None
    one = reasoning_digest({"role": "assistant", "reasoning_content": "why"})
    assert one == reasoning_digest({"role": "assistant", "reasoning": "why"})
    assert one != reasoning_digest({"role": "assistant", "reasoning": "why not"})


def test_the_seed_covers_tools_and_template_arguments() -> None:
    tool = {"type": "function", "function": {"name": "find", "parameters": {}}}
    seeds = [
        conversation([], TemplateArgs(tools, kwargs)).chains[0]
        for tools, kwargs in [(None, None), ([tool], None), (None, {"enable_thinking": False})]
    ]
    assert len(set(seeds)) == 3
    assert conversation([], TemplateArgs([], {})).chains[0] == seeds[0]


def test_an_argument_of_any_depth_or_size_is_digested() -> None:
    for depth in (100, 400, 600, 900, 990, 100_000):
        deep = "[" * depth + "]" * depth
        assert digest(call(deep)) != digest(call(deep[1:-1]))
        assert digest(call(deep)) == digest(call(deep))
    assert digest(call('{"n": 123456789012345678901234567890}')) != digest(
        call('{"n": 123456789012345678901234567891}')
    )
    assert digest(call('{"n": 1e400}')) != digest(call('{"n": 1e401}'))
    assert digest({"role": "user", "content": "\ud800"}) != digest({"role": "user", "content": "\ud801"})


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
messages = st.dictionaries(
    st.sampled_from(["role", "content", "name", "tool_call_id", "reasoning_content", "mood"]), json_values
)


@given(messages)
def test_what_json_keeps_the_digest_keeps(message: dict[str, Any]) -> None:
    shuffled = dict(reversed(json.loads(json.dumps(message)).items()))
    assert digest(shuffled) == digest(message)
    assert reasoning_digest(shuffled) == reasoning_digest(message)


@given(json_values)
def test_arguments_survive_a_round_trip(arguments: Any) -> None:
    assert digest(call(json.dumps(arguments))) == digest(call(json.dumps(arguments, indent=1)))


@given(st.lists(messages, max_size=4))
def test_a_conversation_is_its_messages_appended(history: list[dict[str, Any]]) -> None:
    whole = conversation(history, NO_ARGS)
    chain = whole.chains[0]
    assert len(whole.chains) == len(history) + 1
    for length, message in enumerate(history, 1):
        chain = append(chain, message)
        assert chain == whole.chains[length]


@given(st.lists(st.text()))
def test_text_parts_join(texts: list[str]) -> None:
    assert joined_text([{"type": "text", "text": text} for text in texts]) == "".join(texts)
