"""Which messages count as the same."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.domain.matching import OLDEST_RULES
from rolloutfleet_proxy.domain.messages import (
    NO_ARGS,
    PLAIN_RULES,
    Calls,
    Rules,
    TemplateArgs,
    append,
    conversation,
    in_order,
    joined_text,
    reasoning_digest,
    renamed,
)


def digest(message: Mapping[str, Any], rules: Rules = PLAIN_RULES) -> bytes:
    """Of a message by itself."""
    return append(b"", message, rules)


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
    "another tool call id": (call("{}"), call("{}", id="c2")),
    "what no format writes": (
        {"role": "assistant", "content": "a"},
        {
            "role": "assistant",
            "content": "a",
            "name": "solver",
            "refusal": "no",
            "annotations": [{"type": "url"}],
            "provider_specific_fields": {"refusal": None},
            "reasoning_details": [{"type": "reasoning.text", "text": "why"}],
            "extra": {"cost": 0.1},
            "mood": False,
        },
    ),
    "what no format writes of a tool call": (call("{}"), call("{}", provider_specific_fields={"a": 1}, type="tool")),
    "white space alone beside tool calls": (
        call("{}") | {"content": " \n\n"},
        call("{}") | {"content": None},
    ),
    "white space alone": ({"role": "assistant", "content": " "}, {"role": "assistant", "content": ""}),
    "white space around what an assistant says": (
        {"role": "assistant", "content": "\n    a\n  b \n", "name": "solver"},
        {"role": "assistant", "content": "a\n  b", "reasoning_content": "why"},
    ),
    "order of fields": ({"role": "user", "content": "a"}, {"content": "a", "role": "user"}),
}

DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "content": ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}),
    "white space within what an assistant says": (
        {"role": "assistant", "content": "a\n  b"},
        {"role": "assistant", "content": "a\n b"},
    ),
    "role": ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}),
    "a field in the text": (
        {"role": "user", "content": 'a","mood":"odd'},
        {"role": "user", "content": "a", "mood": "odd"},
    ),
    "a NUL in the text": ({"role": "user", "content": "\0a"}, {"role": "user", "content": "a"}),
    "text and an empty field of that text": ({"role": "user", "content": "a"}, {"role": "user", "a": "content"}),
    "arguments": (call('{"n": 1}'), call('{"n": 2}')),
    "text and number in arguments": (call('{"n": 1}'), call('{"n": "1"}')),
    "invalid JSON compares as text": (call("{n: 1}"), call("{n:  1}")),
    "text that is no JSON, and a JSON string": (call("oops"), call('"oops"')),
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


def test_white_space_around_reasoning_does_not_count() -> None:
    stripped = reasoning_digest({"role": "assistant", "reasoning_content": "why\n not"})
    assert reasoning_digest({"role": "assistant", "reasoning_content": "\nwhy\n not \n"}) == stripped
    assert reasoning_digest({"role": "assistant", "reasoning_content": "why not"}) != stripped
    assert reasoning_digest({"role": "assistant", "reasoning_content": " \n"}) is None


def test_a_field_that_the_chat_format_writes_counts_for_the_role_that_it_is_written_of() -> None:
    rules = Rules(frozenset({("tool", "name")}))
    one, other = ({"role": "tool", "content": "a", "name": name} for name in ("find", "look_up"))
    assert digest(one) == digest(other)
    assert digest(one, rules) != digest(other, rules)
    assert digest(one | {"name": None}, rules) == digest({"role": "tool", "content": "a"}, rules)
    assert digest(one | {"role": "user"}, rules) == digest(other | {"role": "user"}, rules)


def test_rules_are_made_from_their_name() -> None:
    every = [Rules(frozenset(fields)) for fields in ((), [("tool", "name"), ("assistant", "wo_eos")])]
    assert all(Rules.named(rules.name) == rules for rules in every)
    assert len({OLDEST_RULES, *(rules.name for rules in every)}) == 1 + len(every)


def test_rules_are_made_from_the_name_of_an_older_version() -> None:
    assert Rules.named("3 tool.name -plain.start.spaces") == Rules(frozenset({("tool", "name")}))
    assert Rules.named(OLDEST_RULES) == PLAIN_RULES


def exchange(*ids: str | None, answers: Sequence[str]) -> list[dict[str, Any]]:
    calls = [{"id": each, "type": "function", "function": {"name": "find", "arguments": "{}"}} for each in ids]
    results = [{"role": "tool", "tool_call_id": each, "content": "found"} for each in answers]
    return [{"role": "assistant", "tool_calls": calls}, *results]


def last_chain(*exchanges: list[dict[str, Any]]) -> bytes:
    return conversation([message for each in exchanges for message in each], NO_ARGS).chains[-1]


def test_ids_that_were_all_given_new_names_are_the_same_and_exchanged_ones_are_not() -> None:
    sent = last_chain(exchange("a", "b", answers="ab"), exchange("c", answers="c"))
    assert sent == last_chain(exchange("x", "y", answers="xy"), exchange("z", answers="z"))
    assert sent != last_chain(exchange("a", "b", answers="xb"), exchange("c", answers="c"))
    assert sent != last_chain(exchange("a", "b", answers="bb"), exchange("c", answers="c"))
    assert sent != last_chain(exchange("a", "b", answers="ab"), exchange("c", answers="a"))
    # Some models count their calls anew in each answer.
    assert sent == last_chain(exchange("a", "b", answers="ab"), exchange("a", answers="a"))


@pytest.mark.parametrize("sent", ["ab", "ba"])
def test_results_that_follow_each_other_have_the_order_of_their_calls(sent: str) -> None:
    calling, first, second = exchange("a", "b", answers=["a", "b"])
    results = {"a": first | {"content": "A"}, "b": second | {"content": "B"}}
    given = [calling, *(results[each] for each in sent)]
    assert conversation(given, NO_ARGS).chains[-1] == last_chain([calling, results["a"], results["b"]])
    apart = [calling, results["b"], {"role": "user", "content": "And?"}, results["a"]]
    with_another = [results["b"], results["a"], {"role": "tool"}]
    assert all(list(in_order(each, Calls(["a", "b"]))) == each for each in (apart, with_another))
    assert last_chain(given) != last_chain([calling, *(results[each] | {"content": "A"} for each in sent)])


def test_an_id_that_comes_again_names_the_newest_call_before_it() -> None:
    first, second = exchange("a", "b", answers="ab"), exchange("b", "a", answers=["a", "b"])
    assert last_chain(first, second) == last_chain(first, exchange("x", "y", answers="xy"))


@pytest.mark.parametrize("lacking", [None, "", " \n", "null", " null\n", {}])
def test_a_call_without_arguments_is_one_with_an_empty_object(lacking: Any) -> None:
    assert digest(call(lacking)) == digest(call("{}"))
    bare = call(lacking)
    del bare["tool_calls"][0]["function"]["arguments"]
    assert digest(bare) == digest(call("{ }"))
    assert digest(call(lacking)) != digest(call("[]")) != digest(call("0"))


def test_calls_get_the_names_back_that_they_are_known_by() -> None:
    sent = [*exchange("x", "y", answers="yx"), *exchange("x", answers="x"), *exchange("new", answers=["new", "odd"])]
    known = [*exchange("a", "b", answers="ba"), *exchange("c", answers="c"), *exchange("new", answers=["new", "odd"])]
    assert renamed(sent, ["a", "b", "c"]) == known
    assert renamed(known, ["a", "b", "c"]) is known
    assert renamed(sent, []) is sent
    assert renamed(exchange(None, answers=[]), ["a"]) == exchange("a", answers=[])


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
