"""A request for a message, read into terms of no API: what is honoured, stripped, ignored and refused."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.dialects.anthropic_messages.request import MessagesRequest, parse_messages
from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.dialects.depth import MAX_DEPTH
from rolloutfleet_proxy.dialects.openai_chat.request import parse_chat
from rolloutfleet_proxy.domain.errors import DomainError, InvalidRequest
from rolloutfleet_proxy.domain.messages import conversation
from rolloutfleet_proxy.http.errors import status_of

Json = Any
USER = {"role": "user", "content": "Hello?"}
TOOL = {"name": "find", "description": "Finds.", "input_schema": {"type": "object", "properties": {"q": {}}}}
CACHED: Any = {"cache_control": {"type": "ephemeral"}}
HOLDING = Reading(holds_calls=True)


def text(words: str, **more: Json) -> Json:
    return {"type": "text", "text": words, **more}


def body(**fields: Json) -> bytes:
    return json.dumps({"model": "m", "max_tokens": 100, "messages": [USER], **fields}).encode()


def parse(reading: Reading = Reading(), **fields: Json) -> MessagesRequest:
    return parse_messages(body(**fields), reading)


def said(*messages: Json, **fields: Json) -> list[Json]:
    return parse(messages=[*messages, USER], **fields).messages[:-1]


def refusal(**fields: Json) -> DomainError:
    with pytest.raises(InvalidRequest) as refused:
        parse(**fields)
    return refused.value


def test_the_least_that_can_be_asked() -> None:
    request = parse(max_tokens=7)
    assert request.messages == [USER]
    assert (request.model, request.max_tokens, request.stream, request.sampling) == ("m", 7, False, {})
    assert (request.template.tools, request.template.kwargs, request.calls) == (None, None, None)
    assert (request.ignored, request.stripped) == ((), ())


def test_a_system_prompt_comes_first_as_string_or_as_blocks() -> None:
    assert parse(system="Be brief.").messages == [{"role": "system", "content": "Be brief."}, USER]
    assert parse(system=[text("Be brief.")]).messages == [{"role": "system", "content": "Be brief."}, USER]
    assert parse(system=[text("You are."), text("Be brief.")]).messages[0]["content"] == "You are.\n\nBe brief."
    assert parse(system=[]).messages == parse(system="").messages == [USER]


def test_blocks_of_text_are_the_same_as_a_string() -> None:
    for role in ("user", "system", "assistant"):
        expected = [{"role": role, "content": "Hello there"}]
        assert said({"role": role, "content": "Hello there"}) == expected
        assert said({"role": role, "content": [text("Hello there", **CACHED)]}) == expected
        assert said({"role": role, "content": [text("Hello "), text("there")]}) == expected


def test_system_messages_stay_where_they_are() -> None:
    later = {"role": "system", "content": [text("Remember.", **CACHED)]}
    roles = [message["role"] for message in said(USER, later, system="Be brief.")]
    assert roles == ["system", "user", "system"]


def test_each_tool_result_is_a_message_and_so_is_the_text_around_them() -> None:
    content = [
        {"type": "tool_result", "tool_use_id": "a", "content": "1"},
        {"type": "tool_result", "tool_use_id": "b", "content": [text("2"), text("3")], "is_error": False},
        {"type": "tool_result", "tool_use_id": "c"},
        text("<system-reminder>Go on.</system-reminder>"),
        text("Well?"),
    ]
    assert said({"role": "user", "content": content}) == [
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": "23"},
        {"role": "tool", "tool_call_id": "c", "content": ""},
        {"role": "user", "content": "<system-reminder>Go on.</system-reminder>Well?"},
    ]


def test_a_message_of_no_block_is_an_empty_one() -> None:
    assert said({"role": "user", "content": []}) == [{"role": "user", "content": ""}]
    assert said({"role": "assistant", "content": []}) == [{"role": "assistant", "content": ""}]


def test_an_assistant_thinks_speaks_and_calls() -> None:
    content = [
        {"type": "thinking", "thinking": "So.", "signature": ""},
        text("Running."),
        {"type": "tool_use", "id": "a", "name": "find", "input": {"q": "é", "n": 1.5}},
        {"type": "tool_use", "id": "b", "name": "look", "input": {}},
    ]
    assert said({"role": "assistant", "content": content}) == [
        {
            "role": "assistant",
            "content": "Running.",
            "reasoning_content": "So.",
            "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "find", "arguments": '{"q": "é", "n": 1.5}'}},
                {"id": "b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        }
    ]
    assert said({"role": "assistant", "content": content[3:]})[0]["content"] is None


@pytest.mark.parametrize("lacking", [{}, {"input": None}, {"input": ""}, {"input": " \n"}, {"input": "null"}])
def test_a_call_without_input_has_an_empty_one(lacking: Json) -> None:
    [message] = said({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "find", **lacking}]})
    assert message["tool_calls"][0]["function"] == {"name": "find", "arguments": "{}"}


def test_assistants_messages_in_a_row_are_one() -> None:
    blocks = [
        {"type": "thinking", "thinking": "So.", "signature": ""},
        text("Running."),
        {"type": "tool_use", "id": "a", "name": "find", "input": {}},
        {"type": "tool_use", "id": "b", "name": "find", "input": {}},
    ]
    apart = [{"role": "assistant", "content": [block]} for block in blocks]
    assert said(USER, *apart) == said(USER, {"role": "assistant", "content": blocks})
    between = [USER, apart[1], USER, apart[1]]
    assert [message["role"] for message in said(*between)] == ["user", "assistant"] * 2


def test_documents_and_search_results_are_their_text() -> None:
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "A."},
    }
    of_blocks = {"type": "document", "source": {"type": "content", "content": [text("B.")]}, "context": "by Ada"}
    found = {"type": "search_result", "title": "Found", "source": "https://a.example", "content": [text("C.")]}
    reference = {"type": "tool_reference", "tool_name": "look"}
    result = {"type": "tool_result", "tool_use_id": "a", "content": [found, reference]}
    assert said({"role": "user", "content": [result, document, of_blocks]}) == [
        {"role": "tool", "tool_call_id": "a", "content": "Found\nhttps://a.example\nC.look"},
        {"role": "user", "content": "Notes\nA.by Ada\nB."},
    ]


def test_what_differs_from_request_to_request_is_stripped_and_named() -> None:
    plain = parse(system="You are.", messages=[USER], tools=[TOOL])
    billing = text("x-anthropic-billing-header: cc_version=2.1.330.c3f; cc_entrypoint=sdk-cli;")
    noisy = parse(
        system=[billing, text("You are.", **CACHED)],
        messages=[{"role": "user", "content": [text("Hello?", **CACHED)]}],
        tools=[{**TOOL, **CACHED}],
        **CACHED,
    )
    assert (noisy.messages, noisy.template) == (plain.messages, plain.template)
    assert set(noisy.stripped) == {"cache_control", "x-anthropic-billing-header"}
    assert (noisy.ignored, plain.stripped) == ((), ())
    before = text(billing["text"] + "\nYou are.")
    assert parse(system=[before], tools=[TOOL]).messages == plain.messages
    assert parse(system=[billing]).messages == [USER]


@pytest.mark.parametrize(
    "block",
    [
        text("a", **CACHED),
        {"type": "tool_use", "id": "a", "name": "find", "input": {}, **CACHED},
        {"type": "thinking", "thinking": "a", "signature": "", **CACHED},
    ],
)
def test_cache_control_may_stand_on_any_block(block: Json) -> None:
    assert parse(messages=[{"role": "assistant", "content": [block]}, USER]).stripped == ("cache_control",)


def test_cache_control_that_says_nothing_is_not_named() -> None:
    request = parse(messages=[{"role": "user", "content": [text("a", cache_control=None)]}], cache_control=None)
    assert request.stripped == ()


def test_what_has_no_effect_is_named() -> None:
    request = parse(
        system=[text("a", citations=[])],
        thinking={"type": "adaptive", "display": "updates"},
        context_management={"edits": []},
        output_config={"effort": "high", "task_budget": {}},
        betas=["a"],
        unheard_of=1,
        metadata={"user_id": "u"},
        service_tier="auto",
        messages=[
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "a", "signature": "c2ln"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {}},
                    {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"encrypted_content": "x"}]},
                ],
            },
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no", "is_error": True}],
            },
        ],
        tools=[{**TOOL, "defer_loading": True, "strict": True}, {"type": "web_search_20250305", "name": "web_search"}],
    )
    assert set(request.ignored) == {
        *("betas", "unheard_of", "thinking", "context_management", "system[0].citations"),
        *("output_config.effort", "output_config.task_budget"),
        *("messages[0].content[0].signature", "messages[0].content[1].redacted_thinking"),
        *("messages[0].content[2].server_tool_use", "messages[0].content[3].web_search_tool_result"),
        *("messages[1].content[0].is_error", "tools[0].defer_loading", "tools[1].web_search_20250305"),
    }
    assert request.messages[1] == {"role": "assistant", "content": "", "reasoning_content": "a"}
    assert [tool["function"]["name"] for tool in request.template.tools or ()] == ["find"]
    assert refusal_when_strict(thinking={"type": "adaptive"}) == "thinking"


def test_blocks_of_other_makers_are_taken_and_what_they_say_in_text_is_kept() -> None:
    request = parse(
        messages=[
            {
                "role": "assistant",
                "content": [
                    {"type": "compaction", "content": "We listed files.", "encrypted_content": "x", "signature": "c2"},
                    {"type": "compaction", "content": None},
                    {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}},
                    {"type": "mcp_tool_listing", "mcp_server_name": "a", "tools": []},
                ],
            },
            {
                "role": "user",
                "content": [
                    text("Go on."),
                    {"type": "tool_addition", "tool": {"type": "tool_reference", "name": "find"}},
                    {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}},
                ],
            },
        ],
        tools=[TOOL],
    )
    assert [message["content"] for message in request.messages] == ["We listed files.", "Go on."]
    assert set(request.ignored) == {
        *("messages[0].content[0].encrypted_content", "messages[0].content[0].signature"),
        *("messages[0].content[2].fallback", "messages[0].content[3].mcp_tool_listing"),
        *("messages[1].content[1].tool_addition", "messages[1].content[2].tool_removal"),
    }


def refusal_when_strict(**fields: Json) -> str | None:
    with pytest.raises(DomainError) as refused:
        parse(Reading(strict=True), **fields)
    return refused.value.param


def test_an_effort_that_the_chat_format_takes_is_a_template_argument() -> None:
    takes = Reading(efforts=frozenset({"low", "high"}))
    assert parse(takes, output_config={"effort": "high"}).template.kwargs == {"reasoning_effort": "high"}
    other = parse(takes, output_config={"effort": "max"})
    assert (other.template.kwargs, other.ignored) == (None, ("output_config.effort",))
    assert parse(takes, output_config={"effort": None}).ignored == ()


def test_what_is_sampled_with() -> None:
    request = parse(temperature=0, top_p=0.5, top_k=3, stop_sequences=["END"], stream=True)
    assert request.sampling == {"temperature": 0.0, "top_p": 0.5, "top_k": 3, "stop": ["END"]}
    assert (request.stops, request.stream) == (("END",), True)
    assert parse(top_p=0).sampling == {"top_p": 1e-6}


def test_a_format_is_a_grammar_under_either_name() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    form = {"type": "json_schema", "schema": schema}
    config = {"output_config": {"format": form}}
    for fields in (config, {"output_format": form}, {**config, "output_format": form}):
        request = parse(**fields)
        assert json.loads(request.sampling["json_schema"]) == schema
        assert request.ignored == ()


def test_tools_are_functions() -> None:
    request = parse(tools=[{**TOOL, "type": "custom"}, {"name": "look", "input_schema": {"type": "object"}}])
    assert request.template.tools == [
        {
            "type": "function",
            "function": {"name": "find", "description": "Finds.", "parameters": TOOL["input_schema"]},
        },
        {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
    ]


@pytest.mark.parametrize(
    ("choice", "required", "names", "single"),
    [
        ({"type": "any"}, True, ["find", "look"], False),
        ({"type": "tool", "name": "look"}, True, ["look"], False),
        ({"type": "any", "disable_parallel_tool_use": True}, True, ["find", "look"], True),
        ({"type": "auto", "disable_parallel_tool_use": True}, False, ["find", "look"], True),
    ],
)
def test_a_choice_is_held_to_by_a_grammar(choice: Json, required: bool, names: list[str], single: bool) -> None:
    tools = [TOOL, {**TOOL, "name": "look"}]
    calls = parse(HOLDING, tools=tools, tool_choice=choice).calls
    assert calls is not None
    assert (calls.wanted.required, calls.wanted.single) == (required, single)
    assert [function.name for function in calls.wanted.functions] == names
    wish = parse(Reading(), tools=tools, tool_choice=choice)
    assert wish.calls is None and wish.ignored == calls.wishes


@pytest.mark.parametrize("tools", [[], [{"type": "web_search_20250305", "name": "web_search"}]])
def test_a_call_that_is_required_where_there_is_no_tool_is_named_as_ignored(tools: list[Json]) -> None:
    form = {"format": {"type": "json_schema", "schema": {}}}
    for more in ({}, {"output_config": form}):
        request = parse(HOLDING, tools=tools, tool_choice={"type": "any"}, **more)
        assert request.calls is None and "tool_choice" in request.ignored


@pytest.mark.parametrize("others", [[], [TOOL]])
def test_a_choice_of_a_servers_tool_is_named_as_ignored(others: list[Json]) -> None:
    tools = [{"type": "web_search_20250305", "name": "web_search"}, *others]
    request = parse(HOLDING, tools=tools, tool_choice={"type": "tool", "name": "web_search"})
    assert (request.calls, request.ignored) == (None, ("tools[0].web_search_20250305", "tool_choice"))
    assert len(request.template.tools or ()) == len(others)


def test_a_free_choice_is_none_and_no_choice_hides_the_tools() -> None:
    assert parse(HOLDING, tools=[TOOL], tool_choice={"type": "auto"}).calls is None
    assert parse(HOLDING, tools=[TOOL], tool_choice={"type": "none"}).template.tools is None


DEEP: Json = {}
for _ in range(MAX_DEPTH):
    DEEP = {"a": DEEP}


INLINE = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "find"}}}


def assistant(*blocks: Json) -> Json:
    return [{"role": "assistant", "content": list(blocks)}, USER]


def user(*blocks: Json) -> Json:
    return [{"role": "user", "content": list(blocks)}]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "7"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": ["a"]}, "messages[0]"),
        ({"messages": [{"content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 1}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": ["a"]}]}, "messages[0].content[0]"),
        ({"messages": user({"text": "a"})}, "messages[0].content[0].type"),
        ({"messages": user({"type": "text"})}, "messages[0].content[0].text"),
        ({"messages": user({"type": "text", "text": 1})}, "messages[0].content[0].text"),
        ({"messages": user({"type": "image", "source": {}})}, "messages[0].content[0].type"),
        ({"messages": user({"type": "tool_use", "id": "a"})}, "messages[0].content[0].type"),
        ({"messages": user({"type": "video"})}, "messages[0].content[0].type"),
        ({"messages": user(INLINE)}, "messages[0].content[0].type"),
        ({"messages": user({"type": "tool_result"})}, "messages[0].content[0].tool_use_id"),
        ({"messages": user({"type": "tool_result", "tool_use_id": ""})}, "messages[0].content[0].tool_use_id"),
        (
            {"messages": user({"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]})},
            "messages[0].content[0].content[0].type",
        ),
        ({"messages": user({"type": "document", "source": {"type": "url"}})}, "messages[0].content[0].source.type"),
        ({"messages": user({"type": "document"})}, "messages[0].content[0].source"),
        ({"messages": assistant({"type": "tool_result", "tool_use_id": "a"})}, "messages[0].content[0].type"),
        ({"messages": assistant({"type": "image"})}, "messages[0].content[0].type"),
        ({"messages": assistant({"type": "thinking"})}, "messages[0].content[0].thinking"),
        ({"messages": assistant({"type": "tool_use", "name": "a", "input": {}})}, "messages[0].content[0].id"),
        ({"messages": assistant({"type": "tool_use", "id": "a", "input": {}})}, "messages[0].content[0].name"),
        (
            {"messages": assistant({"type": "tool_use", "id": "a", "name": "a", "input": "{}"})},
            "messages[0].content[0].input",
        ),
        (
            {"messages": assistant({"type": "tool_use", "id": "a", "name": "a", "input": DEEP})},
            "messages[0].content[0].input",
        ),
        ({"messages": assistant(text("Once"))[:1]}, "messages[0].role"),
        ({"system": 1}, "system"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"stop_sequences": [""]}, "stop_sequences[0]"),
        ({"stop_sequences": "END"}, "stop_sequences"),
        ({"temperature": -1}, "temperature"),
        ({"top_k": 0}, "top_k"),
        ({"tools": [{}]}, "tools[0].name"),
        ({"tools": [{"name": "a"}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "input_schema": DEEP}]}, "tools[0].input_schema"),
        ({"tools": [{**TOOL, "description": 1}]}, "tools[0].description"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0].type"),
        ({"tools": [TOOL], "tool_choice": "auto"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name"),
        ({"output_config": {"effort": 1}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_object"}}}, "output_config.format"),
        ({"output_format": {"type": "json_object"}}, "output_format"),
        ({"output_format": {}, "output_config": {"format": {"type": "json_schema", "schema": {}}}}, "output_format"),
        ({"stream": "yes"}, "stream"),
        ({"thread": {"type": "create"}}, "thread"),
        ({"thread": {"type": "continue", "previous_message_id": "turn-a"}}, "thread"),
        ({"compaction": {"type": "summary"}}, "compaction"),
    ],
)
def test_what_is_wrong_is_named(fields: Json, param: str) -> None:
    error = refusal(**fields)
    assert (error.param, status_of(error)) == (param, 400)
    assert param in error.message or param == "messages[0].role"


def test_a_request_that_only_counts_needs_no_limit_and_may_end_with_any_message() -> None:
    counted = json.dumps({"model": "m", "messages": [{"role": "assistant", "content": "Once"}]}).encode()
    assert parse_messages(counted, Reading(), to_count=True).messages == [{"role": "assistant", "content": "Once"}]


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b'{"messages": [{"a": "\xff"}]} {}', b'{"a":' * 100_000])
def test_what_is_no_object_of_json_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_messages(data, Reading())
    assert refused.value.code == "invalid_json"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KINDS = st.sampled_from(
    ["text", "image", "thinking", "redacted_thinking", "tool_use", "tool_result", "document", "search_result", "other"]
)
NAMES = ("text", "thinking", "signature", "id", "name", "input", "tool_use_id", "content", "source", "data", "type")
BLOCK = st.dictionaries(st.sampled_from(NAMES), JSON, max_size=6).flatmap(
    lambda block: KINDS.map(lambda kind: {**block, "type": kind})
)
MESSAGE = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "system"]) | JSON, "content": st.lists(BLOCK | JSON) | JSON}
)


def test_documents_within_documents_are_refused_where_they_are_too_many() -> None:
    nested: Json = text("a")
    for _ in range(300):
        nested = {"type": "document", "source": {"type": "content", "content": [nested]}}
    assert refusal(messages=[{"role": "user", "content": [nested]}]).param == "messages"


def test_what_the_assistant_says_in_a_row_is_one_message() -> None:
    use = {"type": "tool_use", "id": "c1", "name": "find", "input": {}}
    thought = {"type": "thinking", "thinking": "So.", "signature": ""}
    spoken = [{"role": "assistant", "content": content} for content in ([thought], "a", [text("b"), use], "c")]
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    whole = {"role": "assistant", "content": "abc", "reasoning_content": "So.", "tool_calls": [call]}
    assert said(*spoken) == [whole]
    assert said(*spoken, USER, *spoken) == [whole, USER, whole]


@given(messages=st.lists(MESSAGE, max_size=4), system=st.lists(BLOCK, max_size=2) | JSON, tools=st.lists(JSON) | JSON)
def test_any_json_is_read_or_refused_with_400(messages: Json, system: Json, tools: Json) -> None:
    data = msgspec.json.encode({"max_tokens": 1, "messages": messages, "system": system, "tools": tools})
    try:
        request = parse_messages(data, Reading())
    except DomainError as error:
        assert status_of(error) == 400
    else:
        conversation(request.messages, request.template)


def test_the_same_conversation_by_chat_has_the_same_digests_and_the_same_messages() -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "find", "arguments": '{"q": "a", "n": 1}'}}
    chat = parse_chat(
        json.dumps(
            {
                "messages": [
                    {"role": "system", "content": "Be brief."},
                    {"role": "user", "content": "Find a."},
                    {"role": "assistant", "content": "Looking.", "reasoning_content": "So.", "tool_calls": [call]},
                    {"role": "tool", "tool_call_id": "call_1", "content": "found"},
                    {"role": "system", "content": "Hurry."},
                    {"role": "user", "content": "Well?"},
                ],
                "tools": [
                    {
                        "type": "function",
                        "function": {"name": "find", "description": "Finds.", "parameters": TOOL["input_schema"]},
                    }
                ],
            }
        ).encode(),
        Reading(),
    )
    messages = parse(
        system="Be brief.",
        messages=[
            {"role": "user", "content": "Find a."},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "So.", "signature": ""},
                    text("Looking."),
                    {"type": "tool_use", "id": "call_1", "name": "find", "input": {"q": "a", "n": 1}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": [text("found")]}]},
            {"role": "system", "content": "Hurry."},
            {"role": "user", "content": [text("Well?")]},
        ],
        tools=[TOOL],
    )
    assert (messages.messages, messages.template) == (chat.messages, chat.template)
    assert conversation(messages.messages, messages.template) == conversation(chat.messages, chat.template)
