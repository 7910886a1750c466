"""A request to the Responses API is read whole, into the messages that chat has for it, or refused with a 400."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.proxy.dialects.conversations import as_items, call, conversations
from tests.unit.proxy.dialects.openai_responses.responses import FIND, PATCH, RESPONSES, SEARCH, SPAWN, Json, asked
from tests.wording import LIBRARIES

from rolloutfleet.errors import INVALID_JSON, INVALID_REQUEST, UNSUPPORTED_PARAMETER
from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.dialects.depth import MAX_DEPTH
from rolloutfleet_proxy.dialects.images import Images
from rolloutfleet_proxy.dialects.openai_chat import OpenAIChat
from rolloutfleet_proxy.dialects.openai_responses.items import read_input
from rolloutfleet_proxy.dialects.openai_responses.request import ResponsesRequest
from rolloutfleet_proxy.domain import errors
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.messages import Message, TemplateArgs, conversation

USER = {"role": "user", "content": "hello"}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "find", "arguments": '{"q": 1}'}
ANSWER = {"type": "function_call_output", "call_id": "c1", "output": "found"}
REASONED = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "So."}],
    "encrypted_content": None,
}


def read(*items: Json, ignored: list[str] | None = None) -> list[Message]:
    messages, _ = read_input(list(items), [] if ignored is None else ignored, Images(replaced=False))
    return messages


def said(text: str) -> dict[str, Json]:
    part = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [part]}


def refusal(**fields: Any) -> DomainError:
    with pytest.raises(DomainError) as caught:
        asked(**fields)
    assert RESPONSES.answer_to(caught.value)[0] == 400
    return caught.value


# What is read


def test_the_least_request() -> None:
    request = asked()
    assert request.messages == [{"role": "user", "content": "a"}]
    assert (request.model, request.template, request.max_tokens) == (None, TemplateArgs(None, None), None)
    assert (request.sampling, request.stops, request.stream, request.logprobs) == ({}, (), False, False)
    assert (request.follows, request.own_messages, request.ignored) == (None, 0, ())
    assert request.max_tokens_is_upper_bound


def test_sampling_parameters_get_sglangs_names() -> None:
    request = asked(temperature=0.5, top_p=0.9, top_k=20, min_p=0.1, stop="END", max_output_tokens=9)
    expected = {"temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "stop": ["END"]}
    assert (request.sampling, request.stops, request.max_tokens) == (expected, ("END",), 9)


def test_instructions_are_a_system_message_of_this_call_alone() -> None:
    request = asked(input=[USER], instructions="Be brief.")
    assert request.messages == [{"role": "system", "content": "Be brief."}, USER]
    assert request.own_messages == 1


def test_items_of_one_turn_are_one_message() -> None:
    messages = read(USER, REASONED, said("I look."), CALL, {**CALL, "call_id": "c2"}, ANSWER, said("Done."))
    assert messages == [
        USER,
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "So.",
            "tool_calls": [call("find", '{"q": 1}', "c1"), call("find", '{"q": 1}', "c2")],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": "Done."},
    ]


def test_items_that_one_turn_made_are_one_message_in_whatever_order_and_others_are_not() -> None:
    turn, other = "0123456789ab" * 2, "ba9876543210" * 2
    items: list[Json] = [
        {"type": "message", "role": "assistant", "id": f"msg_{turn}", "content": "a"},
        {"type": "reasoning", "id": f"rs_{turn}", "content": [{"type": "reasoning_text", "text": "b"}]},
        {"type": "function_call", "id": f"fc_{turn}_0", "call_id": "c", "name": "find", "arguments": "{}"},
        {"type": "message", "role": "assistant", "id": f"msg_{turn}_1", "content": "d"},
        {"type": "reasoning", "id": f"rs_{other}", "content": [{"type": "reasoning_text", "text": "e"}]},
        {"type": "message", "role": "assistant", "content": "f"},
        {"type": "message", "role": "assistant", "id": f"msg_{other}", "content": "g"},
    ]
    first, second, third = asked(input=items).messages
    assert (first["reasoning_content"], first["content"], first["tool_calls"][0]["id"]) == ("b", "ad", "c")
    assert (second["reasoning_content"], second["content"]) == ("e", "f")
    assert third == {"role": "assistant", "content": "g"}


def test_turns_that_follow_each_other_stay_apart() -> None:
    messages = read(USER, REASONED, said("a"), REASONED, said("b"), said("c"))
    assert [message["content"] for message in messages] == ["hello", "a", "b", "c"]
    assert [message.get("reasoning_content") for message in messages] == [None, "So.", "So.", None]


def test_content_and_outputs_may_be_parts() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    messages = read({"type": "message", "role": "developer", "content": parts}, CALL, {**ANSWER, "output": parts})
    assert (messages[0], messages[2]["content"]) == ({"role": "developer", "content": "ab"}, "ab")


def test_reasoning_that_has_no_text_is_named() -> None:
    ignored: list[str] = []
    opaque = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "s"}]}
    messages = read(USER, {**opaque, "encrypted_content": "x"}, said("a"), ignored=ignored)
    assert messages == [USER, {"role": "assistant", "content": "a"}]
    assert ignored == ["input[1].encrypted_content", "input[1].summary"]


def test_tools_are_what_chat_has_for_them() -> None:
    request = asked(tools=[FIND, SPAWN, PATCH, SEARCH], parallel_tool_calls=True)
    tools = request.template.tools
    assert tools is not None
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    assert [tool["function"] for tool in tools] == [
        {"name": "find", "parameters": FIND["parameters"], "strict": False},
        {"name": "agents__spawn", "parameters": {"type": "object"}},
        {"name": "agents__tell", "parameters": parameters},
        {"name": "apply_patch", "description": "Edits files.", "parameters": parameters},
    ]
    assert request.ignored == ("tools[1].description", "tools[3].web_search")
    assert set(request.declared) == {"agents__spawn", "agents__tell", "apply_patch"}
    assert request.echo.tools == [FIND, SPAWN, PATCH, SEARCH]


@pytest.mark.parametrize("kind", ["apply_patch", "computer", "computer_use_preview", "local_shell", "shell"])
def test_a_tool_that_the_caller_runs_is_refused_where_no_model_here_knows_it(kind: str) -> None:
    error = refusal(tools=[FIND, {"type": kind}])
    assert (error.param, error.code) == ("tools[1].type", UNSUPPORTED_PARAMETER)


def test_a_shell_in_a_servers_container_is_ignored() -> None:
    request = asked(tools=[FIND, {"type": "shell", "environment": {"type": "container_auto"}}])
    assert request.ignored == ("tools[1].shell",)


def test_a_custom_tools_grammar_is_told_and_named() -> None:
    form = {"type": "grammar", "syntax": "lark", "definition": "start: /a+/"}
    request = asked(tools=[{**PATCH, "format": form}])
    assert request.template.tools is not None
    told = request.template.tools[0]["function"]["parameters"]["properties"]["input"]["description"]
    assert "start: /a+/" in told
    assert request.ignored == ("tools[0].format.type",)


@pytest.mark.parametrize("lacking", [{}, *({"arguments": given} for given in (None, "", " \n", "null"))])
def test_a_call_without_arguments_has_an_empty_object(lacking: dict[str, Any]) -> None:
    [message] = read({"type": "function_call", "call_id": "c1", "name": "find", **lacking})
    assert message["tool_calls"][0]["function"] == {"name": "find", "arguments": "{}"}


def test_a_namespaces_and_a_custom_tools_calls_come_back_as_they_were_made() -> None:
    made = {"type": "custom_tool_call", "call_id": "c1", "name": "tell", "namespace": "agents", "input": "hi\n"}
    messages = read(
        {**CALL, "namespace": "agents", "name": "spawn"},
        made,
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "ok"},
    )
    calls = [each["function"] for each in messages[0]["tool_calls"]]
    assert calls == [
        {"name": "agents__spawn", "arguments": '{"q": 1}'},
        {"name": "agents__tell", "arguments": '{"input":"hi\\n"}'},
    ]
    assert messages[1] == {"role": "tool", "tool_call_id": "c1", "content": "ok"}


def test_a_namespace_that_ends_like_a_separator_gets_no_other() -> None:
    [tool] = asked(tools=[{**SPAWN, "name": "mcp__git__", "tools": [FIND]}]).template.tools or []
    assert tool["function"]["name"] == "mcp__git__find"


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"find", "agents__spawn", "agents__tell", "apply_patch"}),
        ({"type": "function", "name": "find"}, {"find"}),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, {"agents__spawn"}),
        ({"type": "custom", "name": "apply_patch"}, {"apply_patch"}),
        ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "find"}]}, {"find"}),
    ],
)
def test_a_choice_of_tools_is_held_to_by_a_grammar(choice: Json, names: set[str]) -> None:
    request = asked(Reading(holds_calls=True), tools=[FIND, SPAWN, PATCH, SEARCH], tool_choice=choice)
    assert request.calls is not None
    assert {function.name for function in request.calls.wanted.functions} == names
    assert request.calls.wanted.required
    without = asked(tools=[FIND, SPAWN, PATCH], tool_choice=choice)
    assert (without.calls, without.ignored[-1]) == (None, "tool_choice")


def test_no_choice_hides_the_tools() -> None:
    assert asked(tools=[FIND], tool_choice="none").template.tools is None


def test_tools_of_servers_are_bounded_as_answers_repeat_them() -> None:
    assert asked(tools=[{**SEARCH, "more": "x" * 500_000}, FIND]).template.tools
    refused = refusal(tools=[{**SEARCH, "more": "x" * 500_000}] * 3)
    assert (refused.code, refused.param) == ("invalid_request", "tools[2]")


@pytest.mark.parametrize(
    ("field", "of_length", "most"),
    [
        ("user", lambda length: "u" * length, 512),
        ("text", lambda length: {"format": {"type": "text"}, "more": "x" * length}, (1 << 20) - 50),
        ("tool_choice", lambda length: {"type": "function", "name": "find", "more": "x" * length}, (1 << 20) - 60),
        ("reasoning", lambda length: {"effort": "low", "more": "x" * length}, (1 << 12) - 50),
    ],
)
def test_what_an_answer_repeats_is_bounded(field: str, of_length: Any, most: int) -> None:
    assert asked(tools=[FIND], **{field: of_length(most)})
    refused = refusal(tools=[FIND], **{field: of_length(most + 60)})
    assert (refused.code, refused.param) == ("invalid_request", field) and field in refused.message


def test_text_is_held_to_a_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    text = {"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}, "verbosity": "low"}
    request = asked(text=text)
    assert json.loads(request.sampling["json_schema"]) == schema
    assert request.ignored == ("text.verbosity",)
    assert asked(text={"format": {"type": "json_object"}}).sampling == {"json_schema": '{"type":"object"}'}
    assert asked(text={"format": {"type": "text"}}).sampling == {}


def test_an_effort_counts_where_the_chat_format_takes_it() -> None:
    takes = Reading(efforts=frozenset({"high"}))
    assert asked(takes, reasoning={"effort": "high"}).template.kwargs == {"reasoning_effort": "high"}
    request = asked(takes, reasoning={"effort": "xhigh", "summary": "auto"})
    assert (request.template.kwargs, request.ignored) == (None, ("reasoning.effort",))


def test_what_codex_sends_is_taken_without_a_word() -> None:
    request = asked(
        tool_choice="auto",
        parallel_tool_calls=True,
        reasoning={"summary": "auto"},
        store=False,
        include=["reasoning.encrypted_content"],
        prompt_cache_key="t",
        client_metadata={"a": "b"},
        stream=True,
    )
    assert (request.ignored, request.stream) == ((), True)


def test_what_has_no_effect_is_named_and_strictly_refused() -> None:
    assert asked(truncation="auto", moderation={}, wish=1).ignored == ("wish", "moderation", "truncation")
    with pytest.raises(DomainError) as caught:
        asked(Reading(strict=True), truncation="auto")
    assert caught.value.param == "truncation"


def test_a_response_that_is_followed_is_named_by_its_turn() -> None:
    assert asked(previous_response_id="resp_turn-a").follows == "turn-a"
    assert asked(previous_response_id="other").follows == ""


# What is refused


@pytest.mark.parametrize("field", ["background", "conversation", "prompt"])
def test_what_is_not_there_is_refused_by_name(field: str) -> None:
    error = refusal(**{field: {"id": "a"} if field != "background" else True})
    assert (error.code, error.param) == (UNSUPPORTED_PARAMETER, field)
    assert asked(**{field: None}).ignored == ()


IMAGE = {"type": "input_image", "image_url": "data:", "detail": "auto"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": []}, "input"),
        ({"input": None}, "input"),
        ({"input": ["a"]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0].id"),
        ({"input": [{"type": "item_reference", "id": 1}]}, "input[0].id"),
        ({"input": [{"type": "item_reference"}]}, "input[0].id"),
        ({"input": [{"id": "resp_turn-0"}]}, "input[0].id"),
        ({"input": [{"type": []}]}, "input[0].type"),
        ({"input": [{"content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "tool", "content": "a"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        ({"input": [{"role": "user", "content": [IMAGE]}]}, "input[0].content[0].type"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input[0].content[0].text"),
        ({"input": [CALL, {**ANSWER, "output": [IMAGE]}]}, "input[1].output[0].type"),
        ({"input": [{**CALL, "call_id": None}]}, "input[0].call_id"),
        ({"input": [{**CALL, "name": ""}]}, "input[0].name"),
        ({"input": [{**CALL, "arguments": {}}]}, "input[0].arguments"),
        ({"input": [{**CALL, "arguments": "[" * 100 + "]" * 100}]}, "input[0].arguments"),
        ({"input": [{**CALL, "namespace": 1}]}, "input[0].namespace"),
        ({"input": [{**ANSWER, "output": None}]}, "input[0].output"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 2**31}, "max_output_tokens"),
        ({"top_k": 0}, "top_k"),
        ({"stop": [""]}, "stop[0]"),
        ({"metadata": {str(index): "" for index in range(17)}}, "metadata"),
        ({"metadata": {"a": "b" * 513}}, "metadata"),
        ({"tools": [1]}, "tools[0]"),
        ({"tools": [{"name": "a"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**FIND, "parameters": []}]}, "tools[0].parameters"),
        ({"tools": [{**PATCH, "format": "text"}]}, "tools[0].format"),
        ({"tools": [{**SPAWN, "tools": None}]}, "tools[0].tools"),
        ({"tools": [{**SPAWN, "tools": [SEARCH]}]}, "tools[0].tools[0].type"),
        ({"tools": [{**FIND, "name": "agents__spawn"}, SPAWN]}, "tools"),
        ({"tools": [FIND], "tool_choice": {"type": "function", "name": "other"}}, "tool_choice.name"),
        ({"tools": [SEARCH], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"tools": [FIND], "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
    ],
)
def test_a_mistake_is_named(fields: dict[str, Json], param: str) -> None:
    error = refusal(**fields)
    assert error.param == param
    assert param in error.message


def test_no_object_is_refused() -> None:
    for body in (b"[]", b"", b"{", b'{"input": "\xff"'):
        with pytest.raises(DomainError) as caught:
            RESPONSES.read(body, Reading())
        assert caught.value.code in (INVALID_JSON, INVALID_REQUEST)


def test_values_are_as_deep_as_in_chat() -> None:
    value: Json = {}
    for _ in range(MAX_DEPTH + 1):
        value = {"a": value}
    for fields in ({"tools": [{**FIND, "parameters": value}]}, {"chat_template_kwargs": value}, {"reasoning": value}):
        assert "nested deeper" in refusal(**fields).message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=10,
)
kinds = st.sampled_from(["message", "reasoning", "function_call", "custom_tool_call", "function_call_output", "x"])
field_names = st.sampled_from(
    ["role", "content", "call_id", "name", "arguments", "input", "output", "summary", "phase"]
)
any_items = st.dictionaries(field_names, json_values).flatmap(
    lambda item: st.just(item) | kinds.map(lambda kind: {**item, "type": kind})
)
body_fields = st.sampled_from(
    sorted(set(ResponsesRequest.__struct_fields__) | {"tools", "tool_choice", "text", "input"})
)


@settings(max_examples=60)
@given(st.dictionaries(body_fields, json_values), st.lists(any_items, max_size=3))
def test_any_json_is_read_or_refused_with_400(fields: dict[str, Json], items: list[Json]) -> None:
    for body in (fields, {**fields, "input": items}):
        try:
            RESPONSES.read(json.dumps(body).encode(), Reading())
        except DomainError as error:
            status, _, answer = RESPONSES.answer_to(error)
            assert status == 400
            assert LIBRARIES.search(answer.decode()) is None


@pytest.mark.parametrize(
    ("field", "within"),
    [
        ("tools[0]", lambda deep: {"tools": [{"type": "web_search", "x": deep}]}),
        ("text", lambda deep: {"text": {"verbosity": deep}}),
        ("tool_choice", lambda deep: {"tools": [FIND], "tool_choice": {"type": "function", "name": "find", "x": deep}}),
    ],
)
def test_what_an_answer_repeats_is_nested_no_deeper_than_it_can_be_written(field: str, within: Any) -> None:
    """An answer that can't be written would be a 500 for a turn that is on disk."""
    deep: Json = []
    for _ in range(MAX_DEPTH):
        deep = [deep]
    assert refusal(**within(deep)).param == field


def test_reasoning_of_several_items_is_one_and_ends_with_its_message() -> None:
    assert read(REASONED, REASONED, CALL, ANSWER, REASONED, said("a"), REASONED) == [
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "So.So.",
            "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
        {"role": "assistant", "content": "a", "reasoning_content": "So."},
        {"role": "assistant", "content": None, "reasoning_content": "So."},
    ]


# The same conversation by chat


@given(conversations(st.sampled_from(["find", "agents__spawn", "apply_patch"]), later=["developer"]))
def test_a_conversation_is_the_one_that_chat_has(messages: list[Message]) -> None:
    system, *others = messages
    items = [item for message in others for item in as_items(message)]
    tools = [FIND, SPAWN, PATCH]
    ours = asked(instructions=system["content"], input=items, tools=tools)
    assert ours.messages == messages
    nested = [{"type": "function", "function": tool["function"]} for tool in ours.template.tools or []]
    body = json.dumps({"messages": messages, "tools": nested}).encode()
    chats = OpenAIChat().read(body, Reading())
    assert conversation(ours.messages, ours.template) == conversation(chats.messages, chats.template)


# Errors as clients act on them


def test_what_is_gone_is_a_400_with_its_code() -> None:
    status, headers, body = RESPONSES.answer_to(errors.SessionDeleted("Gone."))
    error = json.loads(body)["error"]
    assert (status, error["code"], error["type"]) == (400, "session_deleted", "invalid_request_error")
    assert dict(headers)[b"content-length"] == b"%d" % len(body)


def test_every_429_says_when_to_come_again() -> None:
    kinds = [errors.NoRoom("a"), errors.TooManyInFlight("a"), errors.EngineOverloaded("a")]
    passed = errors.PeerError("a", code="no_room", status=429, param=None)
    for error in (*kinds, passed):
        status, headers, _ = RESPONSES.answer_to(error)
        assert (status, [name for name, _ in headers].count(b"retry-after")) == (429, 1)
