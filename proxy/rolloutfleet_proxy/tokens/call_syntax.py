"""Which chat formats' tool calls can be held to a grammar, and how each writes them.

What stands here is what the format's own parser reads as a call; formats that are missing can't be held.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from rolloutfleet_proxy.tokens.call_grammar import CallForms, Form, Marks, optional, sequence, text, token
from rolloutfleet_proxy.tokens.call_parameters import Parameters
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary

FUNCTION_NAME: Final = re.compile(r"[^\s\x00-\x1f<>{}\"\\:]{1,256}")
"""Names that every format can write."""


@dataclass(frozen=True, slots=True)
class Writing:
    """A format's marks in a vocabulary, as tokens by their text, and what no text may hold."""

    token: Mapping[str, Form]
    kept_out: Sequence[str]


@dataclass(frozen=True, slots=True)
class Syntax:
    answers: tuple[str, ...]
    """The marks behind which an answer begins; a vocabulary has the first of them at least."""
    marks: tuple[str, ...]
    """Those that calls are written with."""
    forms: Callable[[Writing], CallForms]
    think: tuple[str, str] = ("<think>", "</think>")
    """Around reasoning; without effect in a vocabulary that lacks them."""


def marks_and_forms(name: str, vocabulary: Vocabulary, stops: Sequence[int]) -> tuple[Marks, CallForms] | None:
    """How a chat format's calls are held in a vocabulary; None where they can't be."""
    syntax = _SYNTAXES.get(name)
    if syntax is None:
        return None
    answers = vocabulary.convert_tokens_to_ids(syntax.answers)
    ids = dict(zip(syntax.marks, vocabulary.convert_tokens_to_ids(syntax.marks), strict=True))
    opened, closed = vocabulary.convert_tokens_to_ids(syntax.think)
    if answers[0] is None or None in ids.values():
        return None
    ends = [vocabulary.decode([stop]) for stop in stops]
    kept_out = tuple(dict.fromkeys((*syntax.marks, *syntax.think, *ends)))
    marks = Marks(
        tokens=tuple(ids[mark] for mark in syntax.marks),
        answers=frozenset(each for each in answers if each is not None),
        think=None if opened is None or closed is None else (opened, closed),
        think_texts=syntax.think,
        kept_out=kept_out,
    )
    return marks, syntax.forms(Writing({mark: token(ids[mark]) for mark in syntax.marks}, kept_out))


def _hermes(writing: Writing) -> CallForms:
    return CallForms(
        opening=[writing.token["<tool_call>"], text('\n{"name": ')],
        named=lambda name: [text(f'{json.dumps(name, ensure_ascii=False)}, "arguments": ')],
        closing=[text("}\n"), writing.token["</tool_call>"]],
        between=text("\n"),
    )


def _qwen_xml(writing: Writing, *, gap: str = "\n\n", last: str = "") -> CallForms:
    """`last` may stand behind the last call."""
    parameters = Parameters(
        named=lambda name: sequence([text("<parameter="), name, text(">\n")]),
        end=text("\n</parameter>\n"),
        kept_out=("</parameter>", *writing.kept_out),
    )

    return CallForms(
        opening=[writing.token["<tool_call>"], text("\n<function=")],
        named=lambda name: [text(f"{name}>\n")],
        arguments=parameters.forms,
        closing=[text("</function>\n"), writing.token["</tool_call>"]],
        between=text("\n"),
        end=[optional(text(last))] if last else [],
        gap=gap,
    )


def _glm(writing: Writing, *, line: str) -> CallForms:
    """`line` ends the lines that a call is written in."""
    mark = writing.token
    ended = [text(line)] if line else []
    parameters = Parameters(
        named=lambda name: sequence([mark["<arg_key>"], name, mark["</arg_key>"], *ended, mark["<arg_value>"]]),
        end=sequence([mark["</arg_value>"], *ended]),
        kept_out=writing.kept_out,
    )

    return CallForms(
        opening=[mark["<tool_call>"]],
        named=lambda name: [text(name + line)],
        arguments=parameters.forms,
        closing=[mark["</tool_call>"]],
        between=optional(text(line)) if line else None,
        lead=line,
        gap=line,
    )


def _deepseek(writing: Writing) -> CallForms:
    calls_begin, calls_end, call_begin, call_end, sep = map(writing.token.__getitem__, _DEEPSEEK_MARKS)

    return CallForms(
        begin=[calls_begin],
        opening=[call_begin, text("function"), sep],
        named=lambda name: [text(f"{name}\n```json\n")],
        closing=[text("\n```"), call_end],
        between=optional(text("\n")),
        end=[calls_end],
    )


def _kimi(writing: Writing) -> CallForms:
    section_begin, section_end, call_begin, argument_begin, call_end = map(writing.token.__getitem__, _KIMI_MARKS)
    index = {"type": "regex", "pattern": "[0-9]{1,4}"}

    return CallForms(
        begin=[section_begin],
        opening=[call_begin, text("functions.")],
        named=lambda name: [text(f"{name}:"), index, argument_begin],
        closing=[call_end],
        end=[section_end],
        gap="",
    )


def _minimax(writing: Writing) -> CallForms:
    parameters = Parameters(
        named=lambda name: sequence([text('<parameter name="'), name, text('">')]),
        end=text("</parameter>\n"),
        kept_out=("</parameter>", "</invoke>", *writing.kept_out),
    )

    return CallForms(
        begin=[writing.token["<minimax:tool_call>"], text("\n")],
        opening=[text('<invoke name="')],
        named=lambda name: [text(f'{name}">\n')],
        arguments=parameters.forms,
        closing=[text("</invoke>\n")],
        end=[writing.token["</minimax:tool_call>"]],
    )


def _hy3(writing: Writing) -> CallForms:
    calls, calls_end, call, call_end, sep, key, key_end, value, value_end = map(writing.token.__getitem__, _HY3_MARKS)
    line = text("\n")
    parameters = Parameters(
        named=lambda name: sequence([key, name, key_end, line, value]),
        end=sequence([value_end, line]),
        kept_out=writing.kept_out,
    )

    return CallForms(
        begin=[calls, line],
        opening=[call],
        named=lambda name: [text(name), sep, line],
        arguments=parameters.forms,
        closing=[call_end, line],
        end=[calls_end],
        gap="",
    )


def _llama(_: Writing) -> CallForms:
    return CallForms(
        opening=[text('{"name": "')],
        named=lambda name: [text(f'{name}", "parameters": ')],
        closing=[text("}")],
        alone=True,
        gap="",
    )


_TOOL_CALL = ("<tool_call>", "</tool_call>")
_HERMES = Syntax(("<|im_start|>",), _TOOL_CALL, _hermes)
_QWEN_XML = Syntax(("<|im_start|>",), _TOOL_CALL, _qwen_xml)

_NEMOTRON = Syntax(("<|im_start|>",), _TOOL_CALL, partial(_qwen_xml, gap="\n", last="\n"))
_GLM_MARKS = (*_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
_GLM_LINES = Syntax(("<|assistant|>",), _GLM_MARKS, partial(_glm, line="\n"))
_GLM = Syntax(("<|assistant|>",), _GLM_MARKS, partial(_glm, line=""))

_MINIMAX = Syntax(("]~b]",), ("<minimax:tool_call>", "</minimax:tool_call>"), _minimax)
_HY3_MARKS = tuple(
    f"<{name}:opensource>"
    for name in (
        *("tool_calls", "/tool_calls", "tool_call", "/tool_call", "tool_sep"),
        *("arg_key", "/arg_key", "arg_value", "/arg_value"),
    )
)
_HY3 = Syntax(
    ("<\uff5chy_Assistant:opensource\uff5c>",), _HY3_MARKS, _hy3, think=("<think:opensource>", "</think:opensource>")
)
_KIMI_MARKS = tuple(
    f"<|tool_call{name}|>" for name in ("s_section_begin", "s_section_end", "_begin", "_argument_begin", "_end")
)
_KIMI = Syntax(("<|im_assistant|>",), _KIMI_MARKS, _kimi)
_DEEPSEEK_MARKS = tuple(
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
)
_DEEPSEEK = Syntax(("<\uff5cAssistant\uff5c>", "<\uff5ctool\u2581outputs\u2581end\uff5c>"), _DEEPSEEK_MARKS, _deepseek)

_SYNTAXES = {
    **dict.fromkeys(("qwen3", "qwen3-vl"), _HERMES),
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"), _QWEN_XML),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), _KIMI),
    "minimax-m2": _MINIMAX,
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _NEMOTRON),
    "hy3": _HY3,
    "llama-3": Syntax(("<|end_header_id|>",), (), _llama),
    "glm-4.5": _GLM_LINES,
    **dict.fromkeys(("deepseek-v3", "deepseek-r1"), _DEEPSEEK),
    **dict.fromkeys(("glm-5", "glm-5.1", "glm-5.3"), _GLM),
}
