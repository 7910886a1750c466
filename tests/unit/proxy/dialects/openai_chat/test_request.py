"""A chat request is read whole or refused with a 400 that names the parameter."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.wording import LIBRARIES

from rolloutfleet.errors import INVALID_JSON, INVALID_REQUEST, UNSUPPORTED_PARAMETER
from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.dialects.depth import MAX_DEPTH
from rolloutfleet_proxy.dialects.openai_chat.request import ChatRequest, parse_chat
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.messages import NO_ARGS
from rolloutfleet_proxy.http.errors import body_of, status_of
from rolloutfleet_proxy.tokens.reply_grammar import MOST_FUNCTIONS

LENIENT = Reading()
USER = {"role": "user", "content": "hello"}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
TOOL = {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}

STRUCTURE = {"begin": "<find>", "schema": {"type": "object"}, "end": "</find>"}
TRIGGERED = {"type": "structural_tag", "structures": [STRUCTURE], "triggers": ["<find"]}
FORMAT = {"type": "structural_tag", "format": {"type": "any_text"}}


def parse(**fields: Any) -> ChatRequest:
    return parse_chat(json.dumps({"messages": [USER]} | fields).encode(), LENIENT)


def refusal(body: bytes, reading: Reading = LENIENT) -> DomainError:
    with pytest.raises(DomainError) as caught:
        parse_chat(body, reading)
    assert status_of(caught.value) == 400
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
        {"custom_params": {}},
        {"stop_regex": []},
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


NAMED = {"type": "function", "function": {"name": "find"}}
OTHER = {"type": "function", "function": {"name": "other"}}


def allowed(mode: str, *tools: dict[str, Any]) -> dict[str, Any]:
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": list(tools)}}


IGNORED: list[tuple[dict[str, Any], str]] = [
    ({"verbosity": "low"}, "verbosity"),
    ({"prediction": {"type": "content"}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"moderation": {}}, "moderation"),
    ({"seed": -1}, "seed"),
    ({"input_ids": [1]}, "input_ids"),
    ({"skip_special_tokens": False}, "skip_special_tokens"),
    ({"thinking": {"type": "enabled"}}, "thinking"),
    ({"custom_logit_processor": "{}"}, "custom_logit_processor"),
    ({"": 1}, ""),
    ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": NAMED}, "tool_choice"),
    ({"tools": [TOOL, OTHER], "tool_choice": allowed("auto", NAMED)}, "tool_choice"),
    ({"tools": [TOOL], "tool_choice": allowed("required", NAMED)}, "tool_choice"),
    ({"tools": [TOOL], "parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "hello", "x": 1}]}]},
        "messages[0].content[0].x",
    ),
]


@pytest.mark.parametrize(("fields", "path"), IGNORED)
def test_what_has_no_effect_is_named_or_read_strictly_refused(fields: dict[str, Any], path: str) -> None:
    request = parse(**fields)
    assert request.ignored == (path,)
    plain = parse(**{name: value for name, value in fields.items() if name in ("messages", "stream", "tools")})
    assert replace(request, ignored=()) == replace(plain, ignored=())
    with pytest.raises(DomainError) as refused:
        parse_chat(body(**fields), Reading(strict=True))
    assert (status_of(refused.value), refused.value.param) == (400, path)


@pytest.mark.parametrize(
    ("choice", "param"),
    [
        ({"type": "function", "function": {"name": "other"}}, "tool_choice.function.name"),
        ({"type": "function", "function": {"name": 1}}, "tool_choice.function.name"),
        (allowed("some", NAMED), "tool_choice.allowed_tools.mode"),
        (allowed("auto", {"type": "function"}), "tool_choice.allowed_tools.tools[0].function"),
    ],
)
def test_a_choice_that_names_no_declared_tool_is_refused(choice: Any, param: str) -> None:
    assert refusal(body(tools=[TOOL], tool_choice=choice)).param == param


def test_without_tools_a_call_that_must_come_is_a_wish_and_no_other_choice_is() -> None:
    assert parse(tool_choice="auto", parallel_tool_calls=False) == parse()
    asked = body(tool_choice="required", parallel_tool_calls=False, response_format={"type": "json_object"})
    request = parse_chat(asked, Reading(holds_calls=True))
    assert (request.calls, request.ignored) == (None, ("tool_choice",))
    assert refusal(asked, HOLDING).param == "tool_choice"


HOLDING = Reading(strict=True, holds_calls=True)


@pytest.mark.parametrize(
    ("choice", "parallel", "names", "required"),
    [
        ("required", None, ["find", "other"], True),
        (NAMED, None, ["find"], True),
        (allowed("required", NAMED), False, ["find"], True),
        (allowed("auto", NAMED), None, ["find"], False),
        (allowed("auto"), None, [], False),
    ],
)
def test_where_a_grammar_can_hold_it_a_choice_is_honoured_and_not_named(
    choice: Any, parallel: bool | None, names: list[str], required: bool
) -> None:
    fields = {"tools": [TOOL, OTHER], "tool_choice": choice, "parallel_tool_calls": parallel}
    request = parse_chat(body(**fields), HOLDING)
    assert request.calls is not None
    wanted = request.calls.wanted
    assert [function.name for function in wanted.functions] == names
    assert (wanted.required, wanted.single) == (required, parallel is False)
    assert request.calls.wishes == ("tool_choice", *(["parallel_tool_calls"] if parallel is False else []))
    assert request.ignored == ()
    assert request.template.tools == [TOOL, OTHER]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"tool_choice": "auto"},
        {"tool_choice": "none", "parallel_tool_calls": False},
        {"tool_choice": allowed("auto", NAMED, OTHER), "parallel_tool_calls": True},
    ],
)
def test_a_choice_that_leaves_all_open_takes_no_grammar(fields: dict[str, Any]) -> None:
    assert parse_chat(body(tools=[TOOL, OTHER], **fields), HOLDING).calls is None


def test_one_call_at_most_is_held_by_a_grammar_where_there_is_one() -> None:
    tools = {"tools": [TOOL, OTHER], "parallel_tool_calls": False}
    for choice, names in ((None, ["find", "other"]), ("auto", ["find", "other"]), (allowed("auto", NAMED), ["find"])):
        request = parse_chat(body(**tools, tool_choice=choice), HOLDING)
        assert request.calls is not None and request.ignored == ()
        wanted = request.calls.wanted
        assert ([function.name for function in wanted.functions], wanted.required, wanted.single) == (
            names,
            False,
            True,
        )
        assert request.calls.wishes[-1] == "parallel_tool_calls"
    without = parse_chat(body(**tools), LENIENT)
    assert (without.calls, without.ignored) == (None, ("parallel_tool_calls",))
    at_least = parse_chat(body(**tools, min_tokens=1), Reading(holds_calls=True))
    assert (at_least.calls, at_least.ignored) == (None, ("parallel_tool_calls",))


@pytest.mark.parametrize("grammar", [{"regex": "a"}, {"ebnf": 'root ::= "a"'}])
def test_a_grammar_of_the_requests_own_holds_the_whole_reply_and_the_choice_is_named(grammar: dict[str, Any]) -> None:
    asked = body(tools=[TOOL], tool_choice="required", parallel_tool_calls=False, **grammar)
    request = parse_chat(asked, Reading(holds_calls=True))
    assert (request.calls, request.ignored) == (None, ("tool_choice", "parallel_tool_calls"))
    assert request.sampling == grammar
    assert refusal(asked, HOLDING).param == "tool_choice"


JSON_OBJECT = {"tools": [TOOL, OTHER], "response_format": {"type": "json_object"}}


@pytest.mark.parametrize(
    ("fields", "names", "required", "single"),
    [
        ({}, ["find", "other"], False, False),
        ({"tool_choice": "auto", "parallel_tool_calls": False}, ["find", "other"], False, True),
        ({"tool_choice": allowed("auto", NAMED)}, ["find"], False, False),
        ({"tool_choice": "required"}, ["find", "other"], True, False),
    ],
)
def test_calls_may_come_beside_a_response_format(
    fields: dict[str, Any], names: list[str], required: bool, single: bool
) -> None:
    request = parse_chat(body(**JSON_OBJECT, **fields), HOLDING)
    assert request.calls is not None and list(request.sampling) == ["json_schema"]
    wanted = request.calls.wanted
    assert [function.name for function in wanted.functions] == names
    assert (wanted.required, wanted.single) == (required, single)


def test_tools_that_must_not_be_called_are_none_beside_a_response_format() -> None:
    request = parse_chat(body(**JSON_OBJECT, tool_choice="none"), HOLDING)
    assert (request.calls, request.ignored) == (None, ())


@pytest.mark.parametrize("more", [{}, {"parallel_tool_calls": False}, {"tool_choice": allowed("auto", NAMED)}])
def test_tools_are_named_where_a_response_format_leaves_no_call(more: dict[str, Any]) -> None:
    asked = body(**JSON_OBJECT, **more)
    request = parse_chat(asked, LENIENT)
    assert (request.calls, request.ignored, list(request.sampling)) == (None, ("tools",), ["json_schema"])
    assert request.template.tools == [TOOL, OTHER]
    assert refusal(asked, Reading(strict=True)).param == "tools"


@pytest.mark.parametrize(("name", "is_held"), [("a b", True), ("a<b", False), ("'a", False), ("a\n", False)])
def test_a_required_argument_that_no_grammar_can_write_leaves_the_choice_a_wish(name: str, is_held: bool) -> None:
    parameters = {"type": "object", "properties": {name: {}, "a<c": {}}, "required": [name]}
    tools = [{"type": "function", "function": {"name": "find", "parameters": parameters}}]
    request = parse_chat(body(tools=tools, tool_choice="required"), Reading(holds_calls=True))
    assert (request.calls is not None, request.ignored) == (is_held, () if is_held else ("tool_choice",))


@pytest.mark.parametrize(
    "names", [["a b"], ["a:b"], ["a\x00"], ['a"b'], [f"f{number}" for number in range(MOST_FUNCTIONS + 1)]]
)
def test_functions_that_no_grammar_can_write_leave_the_choice_a_wish(names: list[str]) -> None:
    tools = [{"type": "function", "function": {"name": name}} for name in names]
    request = parse_chat(body(tools=tools, tool_choice="required"), Reading(holds_calls=True))
    assert (request.calls, request.ignored) == (None, ("tool_choice",))


@pytest.mark.parametrize(
    "grammar", [{"regex": "a+"}, {"response_format": {"type": "json_object"}}, {"tool_choice": "required"}]
)
def test_a_least_number_of_tokens_and_a_grammar_exclude_each_other(grammar: dict[str, Any]) -> None:
    assert refusal(body(tools=[TOOL], min_tokens=5, **grammar), Reading(holds_calls=True)).param == "min_tokens"
    assert parse_chat(body(tools=[TOOL], min_tokens=0, **grammar), HOLDING if "tool_choice" in grammar else LENIENT)


def test_a_required_call_of_no_tool_is_refused() -> None:
    choice = allowed("required")
    assert refusal(body(tools=[TOOL], tool_choice=choice)).param == "tool_choice.allowed_tools.tools"


@pytest.mark.parametrize(("efforts", "value"), [((), "low"), ((), "no_think"), (("low", "high"), "medium")])
def test_reasoning_effort_is_named_where_the_chat_format_does_not_take_it(efforts: tuple[str, ...], value: str) -> None:
    request = parse_chat(body(reasoning_effort=value), Reading(efforts=frozenset(efforts)))
    assert (request.template, request.ignored) == (NO_ARGS, ("reasoning_effort",))
    assert refusal(body(reasoning_effort=1)).param == "reasoning_effort"


@pytest.mark.parametrize("value", ["low", "no_think"])
def test_reasoning_effort_is_a_template_argument(value: str) -> None:
    takes = Reading(efforts=frozenset({"low", "high"}))
    assert parse_chat(body(reasoning_effort=value), takes).template.kwargs == {"reasoning_effort": value}


def test_reasoning_effort_stands_beside_other_template_arguments() -> None:
    takes = Reading(efforts=frozenset({"low"}))
    both = parse_chat(body(reasoning_effort="low", chat_template_kwargs={"enable_thinking": False}), takes)
    assert both.template.kwargs == {"enable_thinking": False, "reasoning_effort": "low"}
    contradiction = body(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"})
    assert refusal(contradiction, takes).param == "reasoning_effort"


def test_the_least_top_p_is_above_zero() -> None:
    assert parse(top_p=0).sampling == {"top_p": 1e-6}


def test_a_refusal_of_the_assistants_is_its_text() -> None:
    part = {"type": "refusal", "refusal": "No."}
    messages = [USER, {"role": "assistant", "content": [part]}, USER]
    assert parse(messages=messages).messages[1]["content"] == [{"type": "text", "text": "No."}]
    assert refusal(body(messages=[{"role": "user", "content": [part]}])).param == "messages[0].content[0].type"
    untold = {"role": "assistant", "content": [{"type": "refusal"}]}
    assert refusal(body(messages=[USER, untold])).param == "messages[1].content[0].refusal"


def test_every_kind_of_message() -> None:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "a"},
        {"role": "developer", "content": [{"type": "text", "text": "b", "cache_control": {"type": "ephemeral"}}]},
        {"role": "user", "content": "", "name": "ann"},
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "why", "refusal": None},
        {"role": "assistant", "audio": None, "function_call": None, "annotations": [], "reasoning": "so"},
        {
            "role": "assistant",
            "tool_calls": [{"type": None, "function": {"name": "find", "arguments": {"q": 1}}, "index": 0}],
        },
        {"role": "assistant", "content": "x", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": "{"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "c"},
        {"role": "user", "content": "d", "mood": {"odd": [1]}},
    ]
    assert parse(messages=messages).messages == messages


def test_the_engines_own_fields_are_read() -> None:
    reading = Reading(vocabulary_size=2000)
    given = {"logit_bias": {"0": -100, "1999": 0.5}, "stop_regex": r"\d+\.|[.!?]$", "custom_params": {"budget": 5}}
    assert parse_chat(body(**given), reading).sampling == given | {"stop_regex": [r"\d+\.|[.!?]$"]}
    assert parse(stop_regex=["a", "(?:and|or)"]).sampling == {"stop_regex": ["a", "(?:and|or)"]}
    with pytest.raises(DomainError) as beyond:
        parse_chat(body(logit_bias={"2000": 1}), reading)
    assert (status_of(beyond.value), beyond.value.param) == (400, "logit_bias.2000")


@pytest.mark.parametrize("tag", [FORMAT, TRIGGERED], ids=["format", "structures"])
def test_a_structural_tag_is_taken_as_text_as_an_object_and_as_a_response_format(tag: dict[str, Any]) -> None:
    text = json.dumps(tag)
    assert parse(structural_tag=text).sampling == {"structural_tag": text}
    for asked in ({"structural_tag": tag}, {"response_format": tag}):
        assert json.loads(parse(**asked).sampling["structural_tag"]) == tag


@pytest.mark.parametrize("other", [{"regex": "a"}, {"ebnf": "root ::= [a]"}, {"response_format": FORMAT}])
def test_a_structural_tag_beside_another_grammar_is_refused(other: dict[str, Any]) -> None:
    assert refusal(body(structural_tag=FORMAT, **other)).param in ("structural_tag", "response_format")


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
    "top_p": [-0.1, 1.01, True, "1"],
    "top_k": [-2, 0, 1.5, True, "1"],
    "min_p": [-0.1, 1.1, True],
    "presence_penalty": [-2.1, 2.1, False],
    "frequency_penalty": [-2.1, 2.1, False],
    "repetition_penalty": [0, 2.1, True],
    "seed": [2**63, -2, 0.5, True, "1"],
    "min_tokens": [-1, 0.5, True],
    "ignore_eos": [1, "true"],
    "stop": [1, "", ["a", ""], ["a"] * 33, {}, [1], "x" * 1001],
    "stop_token_ids": [1, "1", [-1], [True], [1.5], [2**31], [1] * 1025],
    "logit_bias": [
        *([], "1", {"x": 1}, {"01": 1}, {"-1": 1}, {"1.0": 1}, {str(2**31): 1}),
        *({"1": "x"}, {"1": True}, {"1": 100.5}, {"1": -101}, {str(token): 1 for token in range(1025)}),
    ],
    "stop_regex": [
        *(1, "", {}, [""], [1], ["a"] * 33, "a" * 257, "\u00e9" * 129, "(", ["a", "*"], "a{2,1}", "(?P<a>"),
    ],
    "structural_tag": [
        *(1, "", [], "[]", "{", "1", {}, "{}", {"type": "structural_tag"}, {"type": "json", "format": {}}),
        *({**TRIGGERED, "type": None}, {**TRIGGERED, "format": {}}, {**TRIGGERED, "triggers": None}),
        *({**TRIGGERED, "triggers": []}, {**TRIGGERED, "triggers": [""]}, {**TRIGGERED, "structures": []}),
        *({**TRIGGERED, "structures": ["x"]}, {**TRIGGERED, "triggers": ["<other"]}, {**FORMAT, "format": "x"}),
        *({**TRIGGERED, "structures": [{**STRUCTURE, field: 1}]} for field in ("begin", "end", "schema")),
        json.dumps({**FORMAT, "x": nested(MAX_DEPTH)}),
    ],
    "custom_params": [
        *(1, "x", [], {"a": [[1]]}, {"a": {"b": {}}}, {"a": 2**63}, {"__sglang_reasoning_in_grammar": True}),
        *({str(number): 1 for number in range(65)}, {"a": "x" * 65_536}),
    ],
    "regex": [1, "", []],
    "ebnf": [1, "", []],
    "n": [2, 0, "1", True, 1.0],
    "modalities": [["audio"], "text", ["text", "audio"]],
    "audio": [{"voice": "a"}],
    "function_call": ["auto"],
    "functions": [[], [{}]],
    "parallel_tool_calls": [1, "false"],
    "tool_choice": [{"type": "function"}, {"type": "custom"}, {"type": "allowed_tools"}, 1, "some", True, []],
}


def body(**fields: Any) -> bytes:
    return json.dumps({"messages": [USER]} | fields).encode()


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in FIELDS.items() for value in values])
def test_a_bad_field_is_named(name: str, value: Any) -> None:
    error = refusal(body(**{name: value}))
    assert error.param is not None
    assert error.param.split("[")[0].split(".")[0] == name
    assert error.code in (INVALID_REQUEST, UNSUPPORTED_PARAMETER)


@pytest.mark.parametrize("name", ["audio", "functions", "n", "modalities"])
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
    ],
)
def test_what_does_not_fit_together_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(body(**fields)).param == param


def number(name: str, text: str) -> bytes:
    return json.dumps({"messages": [USER], name: 12345}).replace("12345", text).encode()


WRONG: list[tuple[bytes, str]] = [
    *((body(**{name: value}), name) for name, values in FIELDS.items() for value in values),
    *((body(messages=[message]), param) for message, param in IN_MESSAGES),
    *((body(tools=[tool]), param) for tool, param in IN_TOOLS),
    *((number(name, text), name) for name in ("temperature", "seed", "max_tokens") for text in ("1e999", "9" * 5000)),
    (b"{}", "messages"),
    *((text, "The body") for text in (b"[]", b"1", b"null", b"", b"{", b'{"messages": NaN}', b"\xff")),
]
"""Bodies, and the field that is wrong in each."""


@pytest.mark.parametrize(("text", "field"), WRONG, ids=lambda value: repr(value[:60]))
def test_a_message_names_the_field_in_no_librarys_words(text: bytes, field: str) -> None:
    error = refusal(text)
    assert field in error.message
    assert error.param is None or error.param in error.message
    assert not LIBRARIES.search(error.message), error.message


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"max_tokens": 0}, "max_tokens", "max_tokens must be greater than or equal to 1."),
        ({"temperature": "1"}, "temperature", "temperature must be a number, not text."),
        ({"top_logprobs": 1.5}, "top_logprobs", "must be a whole number, not a number with a decimal point."),
        ({"stop": ["a", ""]}, "stop[1]", "stop[1] must not be empty."),
        ({"stop": "x" * 1001}, "stop", "stop must have at most 1000 characters."),
        ({"stop": ["a"] * 33}, "stop", "stop must have at most 32 entries."),
        ({"logit_bias": {"x": 1}}, "logit_bias", "A name in logit_bias must be a whole number, not text."),
        ({"logit_bias": {"1": 101}}, "logit_bias", "A value in logit_bias must be less than or equal to 100."),
        ({"messages": [USER, "hi"]}, "messages[1]", "messages[1] must be an object, not text."),
        ({"n": 2}, "n", "give 1, or leave it out."),
        ({"functions": [{}]}, "functions", "give tools instead."),
        ({"messages": [{"role": "king"}]}, "messages[0].role", "messages[0].role: A role is one of"),
    ],
)
def test_a_message_says_what_to_write(fields: dict[str, Any], param: str, said: str) -> None:
    error = refusal(body(**fields))
    assert error.param == param
    assert said in error.message


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
        b'{"messages": [{"role": "user", "content": "\xff"}]',
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "seed": NaN}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}], "seed": -1e999}',
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
        request = parse_chat(json.dumps(value).encode(), LENIENT)
    except DomainError as error:
        assert status_of(error) == 400
        assert json.loads(body_of(error))["error"]["message"]
    else:
        json.dumps(request.sampling, allow_nan=False)


@given(text=st.binary(max_size=60))
def test_any_bytes_are_read_or_refused_with_400(text: bytes) -> None:
    refusal(text)
