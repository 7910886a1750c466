"""What a chat format has no form for is named by its path in the request, in our words or the model's own."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.chat_formats import load
from tests.unit.proxy.tokens.models.families import FAMILIES, chat_format, write_model
from tests.wording import LIBRARIES

from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.dialects.openai_chat.request import parse_chat
from rolloutfleet_proxy.domain.messages import NO_ARGS, Message
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat
from rolloutfleet_proxy.tokens.support import LONGEST_SEARCHED

USER: Message = {"role": "user", "content": "Hello?"}
SAID: Message = {"role": "assistant", "content": "Yes."}
FOUND: Message = {"role": "tool", "tool_call_id": "functions.find:0", "content": "found"}


def call(arguments: Any) -> dict[str, Any]:
    return {"id": "functions.find:0", "type": "function", "function": {"name": "find", "arguments": arguments}}


def calling(*arguments: Any) -> Message:
    return {"role": "assistant", "content": "", "tool_calls": [call(each) for each in arguments]}


def tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "find", **function}}


def properties(value: Any) -> dict[str, Any]:
    return {"parameters": {"type": "object", "properties": value}}


TOO_LONG = '{"a": %s}' % ("9" * 5000)

WRONG: list[tuple[str, dict[str, Any], str, str]] = [
    ("gemma4", {"messages": [USER, SAID, USER, calling("{}", "{"), FOUND, FOUND]}, "[3].tool_calls[1]", "JSON object"),
    ("glm-5.3", {"messages": [USER, calling("[1]"), FOUND]}, "messages[1].tool_calls[0].function.arguments", "JSON"),
    ("deepseek-v4", {"messages": [USER, calling("1"), FOUND]}, "messages[1].tool_calls[0].function.arguments", "JSON"),
    ("inkling", {"messages": [USER, calling('"{}"')]}, "messages[1].tool_calls[0].function.arguments", "JSON object"),
    ("qwen3.5", {"messages": [USER, calling(TOO_LONG)]}, "messages[1].tool_calls[0]", "JSON object"),
    ("llama-3", {"messages": [USER, SAID, USER, calling("{}", "{}")]}, "messages[3].tool_calls", "one call"),
    ("gemma4", {"messages": [USER, SAID, USER, FOUND]}, "messages[3]", "directly follow the assistant's message"),
    ("gemma4", {"messages": [USER, {**SAID, "tool_responses": 1}, USER]}, "messages[1].tool_responses", "leave it out"),
    ("qwen3.8", {"messages": [{"role": "system", "content": "Be brief."}]}, "messages", "needs a message of a user"),
    ("deepseek-v4", {"messages": [USER, SAID, {**USER, "task": "odd"}]}, "messages[2].task", "no such task"),
    ("kimi-k2.5", {"tools": [tool(), tool(**properties([1]))]}, "tools[1].function.parameters", "JSON schema"),
    ("qwen3", {"chat_template_kwargs": {"nope": 1}}, "chat_template_kwargs.nope", "it takes enable_thinking"),
    ("kimi-k2", {"chat_template_kwargs": {"nope": 1}}, "chat_template_kwargs.nope", "it takes none"),
    (
        "qwen3",
        {"chat_template_kwargs": {"enable_thinking": 3}},
        "chat_template_kwargs.enable_thinking",
        "true or false",
    ),
    ("glm-5", {"chat_template_kwargs": {"clear_thinking": True}}, "chat_template_kwargs.clear_thinking", "contradicts"),
    (
        "qwen3.8",
        {"messages": [{"role": "system", "content": "Be brief."}, USER, calling(TOO_LONG)]},
        "messages[2].tool_calls[0].function.arguments",
        "JSON object",
    ),
    ("glm-5.3", {"reasoning_effort": "huge"}, "reasoning_effort", "must be low, high or max"),
    ("inkling", {"reasoning_effort": "huge"}, "reasoning_effort", "leave it out"),
]


def refused(model: ChatFormat, body: dict[str, Any]) -> Unrenderable:
    request = parse_chat(json.dumps({"messages": [USER], **body}).encode(), Reading(efforts=model.efforts))
    with pytest.raises(Unrenderable) as caught:
        model.prompt(request.messages, request.template, [])
    assert not LIBRARIES.search(str(caught.value)), caught.value
    return caught.value


@pytest.mark.parametrize(("name", "body", "param", "said"), WRONG)
def test_what_a_format_refuses_is_named(models: Path, name: str, body: dict[str, Any], param: str, said: str) -> None:
    error = refused(chat_format(name, models), body)
    assert error.param is not None and param in error.param
    assert said in str(error)


def of_its_own(folder: Path, template: str) -> ChatFormat:
    directory = write_model(folder, FAMILIES["qwen3"], config={"model_type": "of its own"})
    (directory / "chat_template.jinja").write_text(template)
    return load(directory)


MOODY = {**USER, "mood": {"a": 1}}
MOOD = "{{ m.content }}{% if m.mood %}{{ m.mood.of.x }}{% endif %}"
FIRST = "{% if loop.first and m.role != 'user' %}{{ raise_exception('Begin with a user.') }}{% endif %}{{ m.content }}"
ARGUMENT = "{{ m.content }}{% if mood %}{{ mood.of.x }}{% endif %}"
ODD = "{{ t.function.name }}{% if t.function.odd %}{{ 1 + t.type }}{% endif %}"
TOOL = f"{{{{ m.content }}}}{{% for t in tools or [] %}}{ODD}{{% endfor %}}"


def each(inner: str) -> str:
    return "{% for m in messages %}<|im_start|>" + inner + "<|im_end|>{% endfor %}<|im_start|>"


@pytest.mark.parametrize(
    ("inner", "body", "param", "said"),
    [
        (MOOD, {"messages": [USER, SAID, MOODY, USER]}, "messages[2].mood", "change it or leave it out"),
        ("{{ m.content + (m.mood or '') }}", {"messages": [USER, {**USER, "mood": 3}]}, "messages[1].mood", ""),
        ("{{ m.__class__.__mro__ }}", {"messages": [USER]}, "messages[0]", "change it"),
        (FIRST, {"messages": [SAID, USER]}, "messages[0]", "refuses it with the words 'Begin with a user'"),
        (ARGUMENT, {"chat_template_kwargs": {"mood": {"a": 1}}}, "chat_template_kwargs.mood", "leave it out"),
        (ARGUMENT, {"chat_template_kwargs": {"odd": 1, "mood": {"a": 1}}}, "chat_template_kwargs.mood", "leave it out"),
        (ARGUMENT, {"chat_template_kwargs": {"messages": 1}}, "chat_template_kwargs.messages", "leave it out"),
        (ARGUMENT, {"chat_template_kwargs": {"tool_parser": "x"}}, "chat_template_kwargs", "leave them out"),
        (TOOL, {"tools": [tool(), tool(), tool(odd=1)]}, "tools[2]", "change it or leave it out"),
    ],
)
def test_what_a_models_own_template_refuses_is_named(
    tmp_path: Path, inner: str, body: dict[str, Any], param: str, said: str
) -> None:
    error = refused(of_its_own(tmp_path, each(inner)), body)
    assert error.param == param
    assert said in str(error)


def test_the_place_is_that_in_the_request_where_messages_are_joined_or_split(tmp_path: Path, models: Path) -> None:
    system = {"role": "system", "content": "Be brief."}
    model = chat_format("llama-3", models)
    body = {"messages": [system, system, USER, {**calling("{}"), "content": "I look."}, FOUND, calling("{}", "{}")]}
    assert refused(model, body).param == "messages[5].tool_calls"


def test_a_new_message_that_can_not_extend_a_turn_is_named(models: Path) -> None:
    model = chat_format("gemma4", models)
    prompt = model.prompt([USER], NO_ARGS, []).ids.tolist()
    output = model.vocabulary.encode("Yes.<turn|>", add_special_tokens=False)
    with pytest.raises(Unrenderable) as caught:
        model.prompt([USER, SAID, FOUND], NO_ARGS, [Candidate(2, lambda: (prompt, output))])
    assert caught.value.param == "messages[2]"


def test_the_fault_of_a_long_conversation_is_not_searched_for(models: Path) -> None:
    long: Message = {"role": "user", "content": "word " * (LONGEST_SEARCHED // 5)}
    assert refused(chat_format("gemma4", models), {"messages": [long, SAID, USER, FOUND]}).param == "messages"


def test_a_format_says_which_degrees_of_reasoning_it_takes(models: Path) -> None:
    assert chat_format("gpt-oss", models).efforts == {"low", "medium", "high"}
    assert chat_format("glm-5.3", models).efforts == {"low", "high", "max"}
    assert chat_format("qwen3", models).efforts == frozenset()
