"""Calls as they were written: their arguments' values, and nothing read where something would be lost."""

from __future__ import annotations

import json
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from renderers.gemma4 import _ArgumentParser
from tests.unit.proxy.tokens.kinds import KINDS, Kind, hoisted
from tests.unit.proxy.tokens.models.families import chat_format
from tests.unit.proxy.tokens.models.measuring import ASKED, _replies, _written
from tests.unit.proxy.tokens.test_reading import NAMES, byte_ids

from rolloutfleet_proxy.domain.events import Text
from rolloutfleet_proxy.domain.messages import TemplateArgs
from rolloutfleet_proxy.tokens.argument_values import parameter_schema, value_of
from rolloutfleet_proxy.tokens.call_reading import GemmaCalls, JsonCalls, SpelledCalls, WrittenCall, json_object
from rolloutfleet_proxy.tokens.call_syntax import SYNTAXES
from rolloutfleet_proxy.tokens.reading import GrowingReply
from rolloutfleet_proxy.tokens.render import ChatFormat


def tool(parameters: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "description": "d", "parameters": parameters}}


def arguments_read(model: ChatFormat, args: TemplateArgs, output: list[int]) -> str:
    prompt = model.prompt(ASKED, args, []).ids
    [call] = model.reader(prompt, args, seed=b"a").read(output).message["tool_calls"]
    assert call["function"]["name"] == "f"
    written: str = call["function"]["arguments"]
    return written


def calling(name: str, model: ChatFormat, args: TemplateArgs, value: Any) -> list[int]:
    """A reply that calls `f` with `v`, as the format writes it; with a thought, where it can't be written without."""
    calls = [("f", {"v": value})]
    return list(next(chain(_written(model, args, "", calls), _replies(name, model, args, "So.", calls, spelled=True))))


@pytest.mark.parametrize("name", NAMES)
def test_values_that_a_format_writes_are_read(models: Path, name: str) -> None:
    model, calls = chat_format(name, models), SYNTAXES[name].calls

    @settings(deadline=None, max_examples=25)
    @given(KINDS, st.data())
    def check(kind: Kind, data: st.DataObject) -> None:
        definitions: dict[str, Any] = {}
        schema = hoisted(kind.schema, definitions)
        parameters = {"type": "object", "properties": {"v": schema}, "$defs": definitions}
        args = TemplateArgs([tool(parameters)])
        value = data.draw(kind.values)
        assume(name != "gemma4" or _has_plain_keys(value))  # it doesn't quote them
        output = calling(name, model, args, value)
        expected = value
        if isinstance(calls, SpelledCalls) and calls.is_held:  # `12` and "12" are written alike
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            words = calls.python_words
            expected = json.loads(value_of(text, parameter_schema(parameters, "v"), parameters, python_words=words))
        read = json.loads(arguments_read(model, args, output))["v"]
        assert (read, type(read)) == (expected, type(expected))

    check()


def _has_plain_keys(value: Any) -> bool:
    if isinstance(value, list):
        return all(map(_has_plain_keys, value))
    return not isinstance(value, dict) or all(key.isidentifier() and _has_plain_keys(value[key]) for key in value)


SPELLED = [name for name, syntax in sorted(SYNTAXES.items()) if isinstance(syntax.calls, SpelledCalls)]


@pytest.mark.parametrize(
    "text", ["    return 1", "\tx\n", "\n\n", " ", "", '"a"', "a\r\nb", "</", "<b>", "日本\u2028語"]
)
@pytest.mark.parametrize("name", SPELLED)
def test_strings_keep_their_white_space(models: Path, name: str, text: str) -> None:
    model = chat_format(name, models)
    args = TemplateArgs([tool({"type": "object", "properties": {"v": {"type": "string"}}})])
    output = calling(name, model, args, text)
    assert json.loads(arguments_read(model, args, output)) == {"v": text}


def ends_of(name: str) -> list[str]:
    """What the format ends arguments, calls and sections with."""
    syntax = SYNTAXES[name]
    ends = [syntax.around.block[1], *syntax.around.sections.values()]
    if isinstance(syntax.calls, SpelledCalls):
        ends += [syntax.calls.argument[2].strip(), syntax.calls.end.strip()]
    return list(dict.fromkeys(filter(None, ends)))


@pytest.mark.parametrize("spelled", [False, True], ids=["tokens", "letters"])
@pytest.mark.parametrize(("name", "end"), [(name, end) for name in NAMES for end in ends_of(name)])
def test_an_end_mark_in_an_argument_ends_nothing(models: Path, name: str, end: str, spelled: bool) -> None:
    model = chat_format(name, models)
    args = TemplateArgs([tool({"type": "object", "properties": {"v": {"type": "string"}}})])
    before, _, behind = model.vocabulary.decode(calling(name, model, args, "Oslo BREAK Rome")).partition("BREAK")
    first, last = (model.vocabulary.encode(text, add_special_tokens=False) for text in (before, behind))
    mark = byte_ids(model.vocabulary, end) if spelled else model.vocabulary.encode(end, add_special_tokens=False)
    for count in (1, 100):
        assert json.loads(arguments_read(model, args, [*first, *mark * count, *last])) == {
            "v": f"Oslo {end * count} Rome"
        }


@pytest.mark.parametrize(("name", "mark"), [("gemma4", '<|"|>'), ("deepseek-v4", "</\uff5cDSML\uff5cparameter>")])
def test_a_mark_within_an_argument_that_is_spelled_out_is_text(models: Path, name: str, mark: str) -> None:
    model = chat_format(name, models)
    args = TemplateArgs([tool({"type": "object", "properties": {"v": {"type": "string"}}})])
    before, _, behind = model.vocabulary.decode(calling(name, model, args, "Oslo BREAK Rome")).partition("BREAK")
    first, last = (model.vocabulary.encode(text, add_special_tokens=False) for text in (before, behind))
    output = [*first, *byte_ids(model.vocabulary, mark), *last]
    assert json.loads(arguments_read(model, args, output)) == {"v": f"Oslo {mark} Rome"}


@pytest.mark.parametrize("name", ["gemma4", "deepseek-v4"])
def test_a_call_that_is_spelled_out_is_text(models: Path, name: str) -> None:
    model, args = chat_format(name, models), TemplateArgs([tool({})])
    text = model.vocabulary.decode(calling(name, model, args, "x")[:-1])
    prompt = model.prompt(ASKED, args, []).ids
    message = model.reader(prompt, args, seed=b"a").read(byte_ids(model.vocabulary, text)).message
    assert "tool_calls" not in message and message["content"].strip() == text.strip()


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{q:<|"|>a,b:{c<|"|>,n:1.10}', '{"q":"a,b:{c","n":1.10}'),
        ("{ a : Oslo, b: 12:30 ,c:[ 1, true,null ], d:{e:{},f:[]}}", None),
        ('{<|"|>a b<|"|>:{c:<|"|><|"|>}}', '{"a b":{"c":""}}'),
        ('{"q":"x", "a b" : {"c":1},d:2}', '{"q":"x","a b":{"c":1},"d":2}'),
        ('{"q:1}', ""),
        ('{q":1}', ""),
        ('{a:["x", {b:1}]}', None),
        ("{}", "{}"),
        ("{a:1,a:2}", ""),
        ("{a:{b:1,b:2}}", ""),
        ("{a:}", ""),
        ("{a:1,}", ""),
        ('{a:<|"|>x}', ""),
        ("{a:1}}", ""),
        ("{a:[1}", ""),
    ],
)
def test_gemmas_arguments_are_read(written: str, arguments: str | None) -> None:
    """As `renderers` reads them, but for names that come twice."""
    expected = json.dumps(_ArgumentParser(written).parse()) if arguments is None else arguments
    try:
        [piece] = GemmaCalls('<|"|>').read(f"call:find{written}", {}, str)
    except ValueError:
        assert expected == ""
        return
    assert piece.call is not None and piece.call.name == "find"
    assert piece.call.arguments == arguments or json.loads(piece.call.arguments) == json.loads(expected)


@pytest.mark.parametrize(
    ("written", "members"),
    [
        ('{"a": 1.10, "b": [1, 2 ], "a b": "\\u00e9"}', {"a": "1.10", "b": "[1, 2 ]", "a b": '"\\u00e9"'}),
        (' {"big":123456789012345678901234567890 } ', {"big": "123456789012345678901234567890"}),
        ('{"q": "\\ud800"}', {"q": '"\\ud800"'}),
        ("{}", {}),
        ('{"a": 1, "a": 2}', None),
        ('{"a": {"b": 1, "b": 2}}', None),
        ('{"a": NaN}', None),
        ('{"a": ' + "9" * 5_000 + "}", None),
        ("[" * 100_000, None),
        ("[1]", None),
        ('{"a": 1} b', None),
        ("", None),
    ],
)
def test_members_of_an_object_are_as_they_were_written(written: str, members: dict[str, str] | None) -> None:
    with nullcontext() if members is not None else pytest.raises((ValueError, RecursionError)):
        assert json_object(written) == members


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "f", "arguments": {"a": 1.10}}', '{"a": 1.10}'),
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"id": "x", "name": "f", "arguments": {}}', "{}"),
        ('{"name": "f"}', "{}"),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f", "arguments": ""}', "{}"),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "args": {"a": 1}}', None),
        ('{"name": "f", "arguments": {}, "parameters": {}}', None),
        ('{"name": "f", "arguments": {}, "args": {"a": 1}}', None),
        ('{"name": "f", "arguments": {}, "input": ["a"]}', None),
        ('{"type": "function", "name": "f", "arguments": {"a": 1}, "index": 0}', '{"a": 1}'),
        ('{"name": "f", "name": "g", "arguments": {}}', None),
        ('{"name": "f", "arguments": [1]}', None),
        ('{"name": "f", "arguments": "a"}', None),
        ('{"name": "a b", "arguments": {}}', None),
        ('{"name": 1, "arguments": {}}', None),
        ('{"arguments": {}}', None),
    ],
)
def test_a_call_in_json_has_a_name_and_its_arguments_under_one_key(written: str, arguments: str | None) -> None:
    with nullcontext() if arguments is not None else pytest.raises(ValueError):
        assert JsonCalls().call(written, {}).arguments == arguments


@pytest.mark.parametrize(
    ("head", "name", "has_id"),
    [
        ("functions.find:0", "find", True),
        ("functions.find", "find", False),
        ("find:17", "find", True),
        ("find", "find", False),
        ("mcp.find:0", "mcp.find", True),
        ("functions.mcp.find:1", "mcp.find", True),
        ("function.find:1", "find", True),
    ],
)
@pytest.mark.parametrize("format_name", ["kimi-k2", "kimi-k2.5"])
def test_kimis_calls_are_named_by_their_ids(format_name: str, head: str, name: str, has_id: bool) -> None:
    calls, mark = SYNTAXES[format_name].calls, SYNTAXES[format_name].marks[4]
    assert calls is not None
    [piece] = calls.read(f"{head}{mark}{{}}", {"find": {}, "mcp.find": {}}, str)
    assert piece.call == WrittenCall(name, "{}", head if has_id else None)


XML = "</think><tool_call>\n<function=f>\n{}</function>\n</tool_call>"
VALUE = "<parameter=v>\n{}\n</parameter>\n"


@pytest.mark.parametrize(
    ("name", "text", "calls"),
    [
        ("qwen3", '<tool_call>{"name": "f", "arguments": "{\\"v\\": \\"\\\\ud800\\"}"}</tool_call>', [{"v": "\ud800"}]),
        ("qwen3.5", XML.format(VALUE.format("use <parameter=x> here")), [{"v": "use <parameter=x> here"}]),
        ("qwen3.5", XML.format(VALUE.format("a</function>\n<function=")), [{"v": "a</function>\n<function="}]),
        ("qwen3.5", XML.format("<parameter=v>\nx\n<parameter=w>\ny\n</parameter>\n"), []),
        ("qwen3.5", XML.format(VALUE.format("x") + "<parameter w>\ny\n</parameter>\n"), []),
        ("qwen3.5", XML.format("<parameter=v>\nx\n</function>\n<function=stop>\n</parameter>\n"), []),
        ("qwen3.5", XML.format(VALUE.format("x") * 2), []),
        ("qwen3.5", XML.format('<parameter="v">\nx\n</parameter>\n'), []),
        ("qwen3.5", XML.format("<parameter='v'>\nx\n</parameter>\n"), []),
        ("glm-4.5", '<tool_call>f\n<arg_key>"v"</arg_key>\n<arg_value>x</arg_value>\n</tool_call>', []),
        ("qwen3.5", XML.format('{"v": "a"}\n'), []),
        ("qwen3.5", XML.format("<param=v>\na\n</param>\n"), []),
        ("qwen3.5", XML.format(VALUE.format("1")) + XML.format(VALUE.format("2"))[8:], [{"v": "1"}, {"v": "2"}]),
        ("glm-4.5", "<tool_call>Hello!</tool_call>", []),
        ("glm-4.5", "<tool_call>f</tool_call>", [{}]),
        ("llama-3", '{"name": [], "parameters": {}}', []),
        ("llama-3", '{"name": "f", "parameters": {}, "v": 1}', []),
        ("llama-3", '{"name": "f", "parameters": {}, "arguments": {}}', []),
        ("llama-3", '{"name": "f"}', []),
        ("llama-3", '{"name": "g", "parameters": {}}', []),
        ("llama-3", '{"type": "function", "name": "f", "parameters": {}}', [{}]),
        ("llama-3", '{"name": "f", "arguments": {"v": "1"}}', [{"v": "1"}]),
        ("kimi-k2", "{0}{2}functions.f:0{4}{{}}{3}{1}", [{}]),
        ("kimi-k2", "{0}{2}words{1}functions.f:0{4}{{}}{3}{1}", []),
        ("kimi-k2", "{2}functions.f:0{4}{{}}{3}", []),
        ("kimi-k2", '{0}{2}functions.f:0 {{"v": "x"}}{4}{3}{1}', []),
        ("kimi-k2", '{0}{2}functions.f:0{{"v": "x"}}{4}{{}}{3}{1}', []),
        ("kimi-k2", "{0}{2}functions.f: please look{4}{{}}{3}{1}", []),
        ("kimi-k2", "{0}{2}functions.f:0WORD{4}{{}}{3}{1}", []),
        ("kimi-k2", "{0}{2}functions.f:0:1{4}{{}}{3}{1}", []),
        ("deepseek-v3", "{2}function{4}f\n```json\n{{}}\n```{3}", []),
        ("deepseek-v3", "{0}{2}function{4}{{}}{3}{1}", []),
        ("deepseek-v3", "{0}{2}f{4}{{}}{3}{1}", [{}]),
        ("deepseek-v3", "{0}{2}I think so{4}f{3}{1}", []),
        ("inkling", 'f<|content_invoke_tool_json|>{"name": "g", "args": {}}<|end_message|>', []),
        ("inkling", 'f<|content_invoke_tool_json|>{"args": {}}<|end_message|>', [{}]),
        (
            "inkling",
            'f<|content_invoke_tool_json|>{"args": {"a": "1<|end_message|>2"}}<|end_message|>',
            [{"a": "1<|end_message|>2"}],
        ),
        ("inkling", 'f<|content_invoke_tool_json|>{"args": {"a": "1<|end_message|>', []),
    ],
)
def test_a_call_is_read_only_as_it_was_written(models: Path, name: str, text: str, calls: list[Any]) -> None:
    model = chat_format(name, models)
    if name in ("kimi-k2", "deepseek-v3"):
        text = text.format(*SYNTAXES[name].marks)
    args = TemplateArgs([tool({"type": "object", "properties": {"v": {"type": "string"}}})])
    output = model.vocabulary.encode(text, add_special_tokens=False)
    prompt = model.prompt(ASKED, args, []).ids
    message = model.reader(prompt, args, seed=b"a").read(output).message
    json.dumps(message, ensure_ascii=False).encode()
    assert [json.loads(call["function"]["arguments"]) for call in message.get("tool_calls", ())] == calls
    assert message.get("tool_calls") or message["content"]


@pytest.mark.parametrize("name", ["qwen3.5", "nemotron-3"])
def test_a_call_in_a_thought_that_ends_is_a_draft(models: Path, name: str) -> None:
    model, draft = chat_format(name, models), XML.format(VALUE.format("1")).removeprefix("</think>")
    args = TemplateArgs([tool({"type": "object", "properties": {"v": {"type": "string"}}})])
    output = model.vocabulary.encode(f"Maybe {draft}, or not.</think>Done.", add_special_tokens=False)
    message = model.reader(model.prompt(ASKED, args, []).ids, args, seed=b"a").read(output).message
    said = {"content": "Done.", "reasoning_content": f"Maybe {draft}, or not."}
    assert message == {"role": "assistant", **said}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3.5", "</think><tool_call>\n<function=f>\n<parameter=" + " " * 50_000 + "\n</tool_call>"),
        ("qwen3.5", "</think><tool_call>\n<function=" + " " * 50_000 + "\n</tool_call>"),
        ("deepseek-v3", "{0}{2}function{4}f\n```json" + "\n" * 50_000 + "x{3}{1}"),
        ("qwen3", '<tool_call>{{"v": "' + '\\"' * 50_000 + "</tool_call>" * 20),
        ("gemma4", "<|tool_call>call:f{{" + "a" + " " * 50_000 + "}}<tool_call|>"),
        ("gemma4", '<|tool_call>call:f{{"a"' + " " * 50_000 + "}}<tool_call|>"),
        ("deepseek-v4", '<\uff5cDSML\uff5cinvoke name="f">' + '<\uff5cDSML\uff5cparameter name="' * 5_000),
    ],
)
@pytest.mark.timeout(60)
def test_hostile_blocks_cost_no_more_than_their_length(models: Path, name: str, text: str) -> None:
    """Each took minutes when a pattern looked at its blanks or quotation marks again and again."""
    model = chat_format(name, models)
    text = text.format(*SYNTAXES[name].marks) if name == "deepseek-v3" else text.replace("{{", "{")
    args = TemplateArgs([tool({"type": "object"})])
    output = model.vocabulary.encode(text, add_special_tokens=False)
    reader = model.reader(model.prompt(ASKED, args, []).ids, args, seed=b"a")
    assert "tool_calls" not in reader.read(output).message
    growing = GrowingReply(reader)
    for start in range(0, len(output), 4):
        growing.feed(output[start : start + 4])


@pytest.mark.parametrize(
    ("stop", "content"),
    [("<tool_call>", "Hi "), ("</tool_call>", 'Hi <tool_call>{"name": "f"}'), ("Hi <tool_call>", "")],
)
def test_a_stop_string_may_be_a_mark(models: Path, stop: str, content: str) -> None:
    model = chat_format("qwen3", models)
    args = TemplateArgs([tool({"type": "object"})])
    output = model.vocabulary.encode('Hi <tool_call>{"name": "f"}</tool_call>', add_special_tokens=False)
    reader = model.reader(model.prompt(ASKED, args, []).ids, args, seed=b"a")
    reply = reader.read(output, stop=stop)
    assert reply.message == {"role": "assistant", "content": content}
    growing = GrowingReply(reader, stops=[stop])
    sent = [delta for each in output for delta in growing.feed([each])]
    assert "".join(delta.text for delta in [*sent, *growing.finish(reply)] if isinstance(delta, Text)) == content
