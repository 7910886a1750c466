"""What `renderers` reads of a reply is what is read here, but for differences of the kinds that are listed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from pathlib import Path
from typing import Any

import pytest
from renderers.base import ToolCallParseStatus
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS, chat_format
from tests.unit.proxy.tokens.models.measuring import ASKED, _replies
from tests.unit.proxy.tokens.test_reading import NAMES, TOOLS, WORDS

from rolloutfleet_proxy.domain.messages import TemplateArgs
from rolloutfleet_proxy.tokens.render import ChatFormat

ARGS = TemplateArgs(TOOLS)
CALLS: tuple[list[tuple[str, dict[str, Any]]], ...] = (
    [],
    [("find", {"q": "x", "n": 3})],
    [("find", {"q": "a b", "n": 1}), ("look_up", {"q": "17", "deep": {"x": [1, None]}})],
)
_NO_CALLS = (
    ToolCallParseStatus.UNCLOSED_BLOCK,
    ToolCallParseStatus.MISSING_NAME,
    ToolCallParseStatus.MALFORMED_STRUCTURE,
)


@dataclass(frozen=True)
class Read:
    """White space counts in neither text: whose it is differs where words stand beside calls."""

    reasoning: str
    content: str
    calls: list[tuple[str, Any]]

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    @property
    def said(self) -> str:
        return self.reasoning + self.content


def here(model: ChatFormat, output: Sequence[int]) -> Read:
    message = model.reader(_prompt(model), ARGS, seed=b"a").read(output).message
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = [(function["name"], json.loads(function["arguments"])) for function in functions]
    return Read(_squeezed(message.get("reasoning_content")), _squeezed(message["content"]), calls)


def there(model: ChatFormat, output: Sequence[int]) -> Read:
    parsed = model._renderer.parse_response(list(output), tools=TOOLS, prompt_ids=list(_prompt(model)))
    calls, texts = [], dict[Any, str]()
    for each in parsed.tool_calls:
        arguments = _object(each.arguments)
        if each.status in _NO_CALLS or arguments is None or not isinstance(each.name, str) or " " in each.name.strip():
            span = each.token_span
            texts[span] = model.vocabulary.decode(output[slice(*span)]) if span else each.raw
        else:
            calls.append((each.name.strip(), arguments))
    return Read(_squeezed(parsed.reasoning_content), _squeezed("".join([parsed.content or "", *texts.values()])), calls)


def _squeezed(text: str | None) -> str:
    return "".join((text or "").split())


def _object(arguments: Any) -> dict[str, Any] | None:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else {} if arguments is None else arguments
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


@cache
def _prompt(model: ChatFormat) -> tuple[int, ...]:
    return tuple(model.prompt(ASKED, ARGS, []).ids)


@cache
def _usual(name: str, model: ChatFormat) -> list[list[int]]:
    """Replies as the format writes them, with thoughts and without, and with each number of calls."""
    return [
        list(ids)
        for calls, thought in product(CALLS, ("So.", ""))
        for ids in _replies(name, model, ARGS, thought, calls, spelled=False)
    ]


@cache
def _blocks(name: str, model: ChatFormat) -> list[tuple[tuple[str, Any], str]]:
    """Each call of `CALLS`, with the text that it is written with."""
    found = []
    for call in chain(*CALLS):
        for ids in _replies(name, model, ARGS, "", [call], spelled=False):
            reader = model.reader(_prompt(model), ARGS, seed=b"a")
            parser = reader.parser()
            pieces = [*parser.feed(reader.alphabet.text(ids)), *parser.finish()]
            found.append((call, "".join(piece.text for piece in pieces if piece.kind == "call").strip()))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_replies_as_a_format_writes_them_are_read_alike(models: Path, name: str) -> None:
    model = chat_format(name, models)
    assert _usual(name, model)
    for output in _usual(name, model):
        assert here(model, output) == there(model, output), model.vocabulary.decode(output)


LOOSE = {
    "no index": ("kimi-k2", "functions.find:0", "functions.find"),
    "no functions": ("kimi-k2", "functions.find:0", "find"),
    "another index": ("kimi-k2.5", "functions.find:0", "functions.find:17"),
    "a call on one line": ("glm-4.5", "\n<arg", "<arg"),
    "a call on several lines": ("glm-5", "<arg_key>", "\n<arg_key>"),
    "spaces between tags": ("laguna-xs-2.1", "</arg_key><arg_value>", "</arg_key> \n <arg_value>"),
    "no line breaks in a block": ("qwen3.5", ">\n<", "><"),
    "spaces before a function": ("nemotron-3", "<tool_call>\n", "<tool_call>\n\n  "),
    "arguments as a JSON string": ("qwen3", '{"q": "x", "n": 3}', '"{\\"q\\": \\"x\\", \\"n\\": 3}"'),
    "JSON on several lines": ("qwen3", '{"q": "x",', '{\n  "q":"x" ,\n'),
    "no line breaks around JSON": ("qwen3-vl", "<tool_call>\n", "<tool_call>"),
    "no language at a fence": ("deepseek-v3", "```json", "```"),
    "no section": ("hy3", "<tool_calls:opensource>\n", ""),
    "the other key of arguments": ("llama-3", '"parameters"', '"arguments"'),
    "no line breaks between arguments": ("minimax-m2", "</parameter>\n", "</parameter>"),
    "a section under another name": ("deepseek-v4", "<\uff5cDSML\uff5ctool_calls>", "<\uff5cDSML\uff5ctoolcalls>"),
    "a section under a third name": ("deepseek-v4", "<\uff5cDSML\uff5ctool_calls>", "<\uff5cDSML\uff5ctool>"),
}


@pytest.mark.parametrize("form", LOOSE)
def test_calls_that_are_written_loosely_are_read_alike(models: Path, form: str) -> None:
    name, usual, loose = LOOSE[form]
    model = chat_format(name, models)
    texts = map(model.vocabulary.decode, _usual(name, model))
    written = [text.replace(usual, loose) for text in texts if usual in text]
    assert written
    for text in written:
        output = model.vocabulary.encode(text, add_special_tokens=False)
        assert here(model, output) == there(model, output) and here(model, output).calls, text


@pytest.mark.parametrize("name", NAMES)
def test_replies_that_went_wrong_are_read_alike_but_for_what_is_listed(models: Path, name: str) -> None:
    model, family = chat_format(name, models), (FAMILIES | VARIANTS)[name]
    marks = [*family.special, *family.plain, *family.marks]

    for seed in range(100):  # the same ones each time: few of these differences are worth a kind of their own
        output = _gone_wrong(random.Random(seed), model, marks, _usual(name, model))
        now, before = here(model, output), there(model, output)
        said = (model.vocabulary.decode(output), now, before)
        assert now == before or any(kind(now, before) for kind in KINDS), said
        for call, text in _blocks(name, model):
            assert now.calls.count(call) >= min(said[0].count(text), before.calls.count(call)), said


def _gone_wrong(
    draw: random.Random, model: ChatFormat, marks: Sequence[str], written: Sequence[Sequence[int]]
) -> list[int]:
    output = list(draw.choice(written))
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(output) + 1)
        encoded = model.vocabulary.encode(draw.choice([*WORDS, *marks]), add_special_tokens=False)
        match draw.randrange(4):
            case 0:
                del output[place : place + 1]
            case 1:
                output[place:place] = output[place : place + 1]
            case 2:
                output[place:place] = encoded
            case 3:
                del output[place:]
    return output


def says_more(now: Read, before: Read) -> bool:
    """Words beside calls, which `renderers` drops, or a call that lost something, which is text: nothing that was said
    is missing."""
    is_text = len(now.calls) < len(before.calls) and all(name in now.said for name in before.names)
    more = len(now.said) - len(before.said)
    return len(now.calls) <= len(before.calls) and (more > 0 or (more == 0 and is_text))


def types_arguments(now: Read, before: Read) -> bool:
    """Arguments are other values, hold what was text, or none is lost, where the same functions are called."""
    is_longer = len(str(now.calls)) > len(str(before.calls))
    return now.names == before.names and (len(now.said) >= len(before.said) or is_longer)


def reads_more_calls(now: Read, before: Read) -> bool:
    """A call with an end mark in an argument, or behind a broken one."""
    return len(now.calls) > len(before.calls)


def takes_no_thought_for_granted(now: Read, before: Read) -> bool:
    """GLM 4.5: what no mark says to be a thought is content."""
    return now.calls == before.calls and len(now.said) == len(before.said) and now.reasoning in before.reasoning


def drops_marks_alone(now: Read, before: Read) -> bool:
    """Marks in a thought, and of sections and messages around a call that is text, are the format's own."""
    return now.calls == before.calls and "<" in before.said and len(now.said) < len(before.said)


def names_arguments(now: Read, before: Read) -> bool:
    """A call with an argument without a name, or whose name has marks in it, is text."""
    broken = [name for name, arguments in before.calls if any(not key or "<" in key for key in arguments)]
    return bool(broken) and all(name in now.said for name in broken)


def drops_labels(now: Read, before: Read) -> bool:
    """Gemma 4: the label of a thought is no part of it."""
    same = (now.content, now.calls) == (before.content, before.calls)
    return same and now.reasoning == before.reasoning.removeprefix("thought")


KINDS = (
    says_more,
    types_arguments,
    reads_more_calls,
    takes_no_thought_for_granted,
    drops_marks_alone,
    names_arguments,
    drops_labels,
)
