"""A chat request is read whole or refused with a 400 that names the parameter."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.errors import INVALID_JSON, INVALID_REQUEST, UNSUPPORTED_PARAMETER
from rolloutfleet_proxy.chat.request import MAX_DEPTH, ChatRequest, body_digest, parse_chat
from rolloutfleet_proxy.errors import ApiError
from rolloutfleet_proxy.turns.messages import NO_ARGS

USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode())


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_chat(body)
    assert caught.value.status == 400
    return caught.value


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# What is read


def test_the_least_request() -> None:
    request = parse()
    assert request.messages == [USER]
    assert (request.model, request.template, request.max_tokens) == (None, NO_ARGS, None)
    assert (request.sampling, request.stops) == ({}, ())
    assert (request.stream, request.include_usage, request.logprobs, request.top_logprobs) == (False, False, False, 0)


def test_sampling_parameters_get_sglangs_names() -> None:
    request = parse(
        temperature=0.5,
        top_p=0.9,
        top_k=20,
        min_p=0.1,
        presence_penalty=1,
        frequency_penalty=-1.5,
        repetition_penalty=1.1,
        seed=7,
        min_tokens=2,
        ignore_eos=True,
        stop="END",
        stop_token_ids=[5, 6],
        max_tokens=9,
    )
    assert request.sampling == {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 20,
        "min_p": 0.1,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.5,
        "repetition_penalty": 1.1,
        "sampling_seed": 7,
        "min_new_tokens": 2,
        "ignore_eos": True,
        "stop": ["END"],
        "stop_token_ids": [5, 6],
    }
    assert request.stops == ("END",)
    assert request.max_tokens == 9


def test_null_is_absent() -> None:
    names = [name for name in FIELDS if name != "messages"]
    request = parse(**dict.fromkeys(names))
    assert request == parse()


@pytest.mark.parametrize(
    "value",
    [
        {"n": 1},
        {"modalities": ["text"]},
        {"parallel_tool_calls": True},
        {"response_format": {"type": "text"}},
        {"tools": []},
        {"tool_choice": "auto"},
        {"user": {"any": "thing"}},
        {"metadata": {"a": "b"}, "store": True, "service_tier": "flex", "safety_identifier": "x"},
        {"prompt_cache_key": "k", "prompt_cache_retention": "24h", "prompt_cache_options": {}},
        {"stream_options": None},
        {"stop": []},
        {"logit_bias": {}},
    ],
)
def test_neutral_and_ignored_values_change_nothing(value: dict[str, Any]) -> None:
    assert parse(**value) == parse()


def test_both_token_limits() -> None:
    assert parse(max_tokens=5).max_tokens == 5
    assert parse(max_completion_tokens=6).max_tokens == 6
    assert parse(max_completion_tokens=6, max_tokens=6).max_tokens == 6
    assert refusal(body(max_completion_tokens=6, max_tokens=5)).param == "max_tokens"


def test_streams() -> None:
    assert parse(stream=True).stream
    assert parse(stream=True, stream_options={"include_usage": True}).include_usage
    assert not parse(stream=True, stream_options={"include_obfuscation": False}).include_usage


def test_logprobs() -> None:
    request = parse(logprobs=True, top_logprobs=20)
    assert (request.logprobs, request.top_logprobs) == (True, 20)


def test_response_formats() -> None:
    assert json.loads(parse(response_format={"type": "json_object"}).sampling["json_schema"]) == {"type": "object"}
    schema = {"type": "object", "properties": {"é": {"type": "string"}}}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, "strict": True}}
    assert json.loads(parse(response_format=form).sampling["json_schema"]) == schema


def test_tools_are_kept_as_sent() -> None:
    tool = {"type": "function", "function": {"strict": True, "name": "find", "extra": [1]}}
    assert parse(tools=[tool]).template.tools == [tool]
    assert parse(tools=[tool], tool_choice="none").template.tools is None


def test_reasoning_effort_is_a_template_argument() -> None:
    assert parse(reasoning_effort="low").template.kwargs == {"reasoning_effort": "low"}
    both = parse(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False})
    assert both.template.kwargs == {"enable_thinking": False, "reasoning_effort": "low"}


def test_every_kind_of_message() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "why", "refusal": None},
        {"role": "assistant", "audio": None, "function_call": None, "annotations": [], "reasoning": "so"},
        {"role": "assistant", "tool_calls": [{"function": {"name": "find", "arguments": {"q": 1}}, "index": 0}]},
        {"role": "assistant", "content": "x", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "c"},
        {"role": "user", "content": "d", "mood": {"odd": [1]}},
    ]
    assert parse(messages=messages).messages == messages


# What is refused

FIELDS: dict[str, list[Any]] = {
    "messages": [None, "hi", {}, [], 1],
    "model": [1, [], {}],
    "tools": ["x", {}, 1],
    "chat_template_kwargs": ["x", []],
    "reasoning_effort": [1, []],
    "response_format": ["json", []],
    "stream": ["true", 1, []],
    "stream_options": [True, []],
    "logprobs": [1, "true"],
    "top_logprobs": [-1, 21, 1.5, True, "2"],
    "max_completion_tokens": [0, -1, 1.5, 1.0, True, "5", 2**31, []],
    "max_tokens": [0, -1, 1.5, 1.0, True, "5", 2**31, []],
    "temperature": [-0.1, 101, True, "1", []],
    "top_p": [0, 1.01, True, "1"],
    "top_k": [-2, 0, 1.5, True, "1"],
    "min_p": [-0.1, 1.1, True],
    "presence_penalty": [-2.1, 2.1, False],
    "frequency_penalty": [-2.1, 2.1, False],
    "repetition_penalty": [0, 2.1, True],
    "seed": [2**63, -1, 0.5, True, "1"],
    "min_tokens": [-1, 0.5, True],
    "ignore_eos": [1, "true"],
    "stop": [1, "", ["a", ""], ["a"] * 33, {}, [1], "x" * 1001],
    "stop_token_ids": [1, "1", [-1], [True], [1.5], [2**31], [1] * 1025],
    "logit_bias": [{"1": 1}, [], {"1": "x"}],
    "n": [2, 0, "1", True, 1.0],
    "modalities": [["audio"], "text", ["text", "audio"]],
    "audio": [{"voice": "a"}],
    "function_call": ["auto"],
    "functions": [[], [{}]],
    "moderation": [{}],
    "prediction": [{"type": "content"}],
    "verbosity": ["low"],
    "web_search_options": [{}],
    "parallel_tool_calls": [False, 1],
    "tool_choice": ["required", {"type": "function"}, 1, "some", True, []],
}


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [USER]} | fields).encode()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
def test_a_bad_field_is_named(name: str, value: Any) -> None:
    error = refusal(body(**{name: value}))
    assert error.param is not None
    assert error.param.split("[")[0].split(".")[0] == name
    assert error.code in (INVALID_REQUEST, UNSUPPORTED_PARAMETER)


@pytest.mark.parametrize(
    "name", ["audio", "functions", "logit_bias", "n", "modalities", "web_search_options", "tool_choice"]
)
def test_what_cannot_be_honoured_says_so(name: str) -> None:
    assert refusal(body(**{name: FIELDS[name][0]})).code == UNSUPPORTED_PARAMETER


IN_MESSAGES: list[tuple[Any, str]] = [
    ("hi", "messages[0]"),
    ({"content": "a"}, "messages[0].role"),
    ({"role": "king", "content": "a"}, "messages[0].role"),
    ({"role": ["user"], "content": "a"}, "messages[0].role"),
    ({"role": "function", "content": "a", "name": "f"}, "messages[0].role"),
    ({"role": "user"}, "messages[0].content"),
    ({"role": "user", "content": None}, "messages[0].content"),
    ({"role": "system", "content": None}, "messages[0].content"),
    ({"role": "user", "content": 1}, "messages[0].content"),
    ({"role": "user", "content": {}}, "messages[0].content"),
    ({"role": "user", "content": ["a"]}, "messages[0].content[0]"),
    ({"role": "user", "content": [{"text": "a"}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": 1}]}, "messages[0].content[0].type"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
    ({"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}, "messages[0].content[0].x"),
    *[
        ({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": kind}]}, "messages[0].content[1].type")
        for kind in ("image_url", "input_audio", "file", "refusal", "video_url")
    ],
    ({"role": "user", "content": "a", "name": 1}, "messages[0].name"),
    ({"role": "user", "content": "a", "tool_calls": [CALL]}, "messages[0].tool_calls"),
    ({"role": "user", "content": "a", "tool_call_id": "c1"}, "messages[0].tool_call_id"),
    ({"role": "tool", "content": "a"}, "messages[0].tool_call_id"),
    ({"role": "tool", "content": "a", "tool_call_id": 1}, "messages[0].tool_call_id"),
    ({"role": "tool", "content": "a", "tool_call_id": ""}, "messages[0].tool_call_id"),
    ({"role": "tool", "content": None, "tool_call_id": "c1"}, "messages[0].content"),
    ({"role": "assistant", "content": "a", "reasoning_content": 1}, "messages[0].reasoning_content"),
    ({"role": "assistant", "content": "a", "reasoning": {}}, "messages[0].reasoning"),
    ({"role": "assistant", "content": "a", "refusal": []}, "messages[0].refusal"),
    ({"role": "assistant", "content": "a", "audio": {"id": "x"}}, "messages[0].audio"),
    ({"role": "assistant", "function_call": {"name": "f"}}, "messages[0].function_call"),
    ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
    ({"role": "assistant", "tool_calls": ["x"]}, "messages[0].tool_calls[0]"),
    ({"role": "assistant", "tool_calls": [{"type": "custom"}]}, "messages[0].tool_calls[0].type"),
    ({"role": "assistant", "tool_calls": [{**CALL, "id": 1}]}, "messages[0].tool_calls[0].id"),
    ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0].function"),
    ({"role": "assistant", "tool_calls": [{"function": "f"}]}, "messages[0].tool_calls[0].function"),
    ({"role": "assistant", "tool_calls": [{"function": {}}]}, "messages[0].tool_calls[0].function.name"),
    ({"role": "assistant", "tool_calls": [{"function": {"name": 1}}]}, "messages[0].tool_calls[0].function.name"),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": 1}}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    ({"role": "user", "content": "a", "x": nested(MAX_DEPTH + 1)}, "messages[0].x"),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": nested(MAX_DEPTH)}}}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 70 + "]" * 70}}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
    (
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[" * 90_000}}]},
        "messages[0].tool_calls[0].function.arguments",
    ),
]


@pytest.mark.parametrize(("message", "param"), IN_MESSAGES)
def test_a_bad_message_is_named_by_its_path(message: Any, param: str) -> None:
    assert refusal(body(messages=[message])).param == param
    assert refusal(body(messages=[USER, message])).param == param.replace("[0]", "[1]", 1)


IN_TOOLS: list[tuple[Any, str]] = [
    ("x", "tools[0]"),
    ({}, "tools[0].type"),
    ({"type": "custom", "custom": {}}, "tools[0].type"),
    ({"type": "function"}, "tools[0].function"),
    ({"type": "function", "function": "f"}, "tools[0].function"),
    ({"type": "function", "function": {}}, "tools[0].function.name"),
    ({"type": "function", "function": {"name": ""}}, "tools[0].function.name"),
    ({"type": "function", "function": {"name": "f", "description": 1}}, "tools[0].function.description"),
    ({"type": "function", "function": {"name": "f", "parameters": []}}, "tools[0].function.parameters"),
    ({"type": "function", "function": {"name": "f", "parameters": {"a": nested(MAX_DEPTH)}}}, "tools[0]"),
]


@pytest.mark.parametrize(("tool", "param"), IN_TOOLS)
def test_a_bad_tool_is_named_by_its_path(tool: Any, param: str) -> None:
    assert refusal(body(tools=[tool])).param == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
        ({"response_format": {}}, "response_format.type"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"a": nested(MAX_DEPTH)}}}},
            "response_format.json_schema.schema",
        ),
        ({"chat_template_kwargs": {"a": nested(MAX_DEPTH)}}, "chat_template_kwargs"),
        ({"chat_template_kwargs": {"reasoning_effort": "high"}, "reasoning_effort": "low"}, "reasoning_effort"),
        ({"input_ids": [1]}, "input_ids"),
        ({"": 1}, ""),
    ],
)
def test_what_does_not_fit_together_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(body(**fields)).param == param


def test_no_messages_at_all() -> None:
    error = refusal(b"{}")
    assert (error.param, error.code) == ("messages", INVALID_REQUEST)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": NaN}',
        b'{"messages": [{"role": "user", "content": "a"}]} {}',
        b"[" * 1_000_000,
        b'{"user": ' + b"[" * 1_000_000,
        b'{"user": ' + b'{"a":' * 1_000_000,
    ],
)
def test_what_is_no_json_object(text: bytes) -> None:
    assert refusal(text).code == INVALID_JSON


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_numbers_are_finite(number: str) -> None:
    for name in ("temperature", "top_p", "seed", "max_tokens"):
        refusal(b'{"messages": [{"role": "user", "content": "a"}], "%s": %s}' % (name.encode(), number.encode()))


def test_depth_is_counted_in_levels() -> None:
    parse(chat_template_kwargs={"a": nested(MAX_DEPTH - 1)})
    refusal(body(chat_template_kwargs={"a": nested(MAX_DEPTH)}))


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8)
words = st.sampled_from(
    [*FIELDS, "role", "content", "type", "text", "function", "name", "arguments", "id", "tool_call_id", "tool_calls"]
)
values = st.recursive(
    scalars | st.sampled_from(["user", "assistant", "tool", "system", "text", "function", "json_schema"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=5),
    max_leaves=20,
)
requests = st.fixed_dictionaries(
    {"messages": st.lists(st.dictionaries(words, values, max_size=4) | values, max_size=3)},
    optional={name: values for name in FIELDS if name != "messages"},
)


@given(value=values | requests)
def test_any_json_is_read_or_refused_with_400(value: Any) -> None:
    try:
        request = parse_chat(json.dumps(value).encode())
    except ApiError as error:
        assert error.status == 400
        assert json.loads(error.body())["error"]["message"]
    else:
        json.dumps(request.sampling, allow_nan=False)


@given(text=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_400(text: bytes) -> None:
    refusal(text)


def test_a_digest_tells_bodies_apart() -> None:
    assert body_digest(b"a") == body_digest(b"a") != body_digest(b"b")
    assert len(body_digest(b"")) == 16
