"""How each chat format writes thoughts and tool calls: one entry a format, from which its replies are read and the
grammar of its calls is made.

What an entry says is what the format's template writes. A reader takes looser forms as well (`call_reading`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Literal

from rolloutfleet_proxy.tokens.call_reading import (
    CallReader,
    DsmlCalls,
    GemmaCalls,
    JsonCalls,
    NamedJson,
    SpelledCalls,
    deepseek_parts,
    kimi_parts,
)

WRITABLE_NAME: Final = re.compile(r"[^\s\x00-\x1f<>{}\"\\:]{1,256}")
"""Names that every format can write."""
INDEX: Final = "{index}"
"""Stands in a text for the number of a call."""


class Thinking(Enum):
    """What a prompt's end leaves to the reply."""

    FREE = "free"
    OPEN = "open"
    CLOSED = "closed"


Ends = Literal["never", "where it has no end", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """How a format writes replies. White space that stands beside a mark is the template's."""

    answers: tuple[str, ...] = ()
    """The marks behind which an answer begins; a vocabulary has the first of them at least."""
    header: str = "<|im_start|>assistant\n"
    """What the prompt of an answer ends in, which some models repeat."""
    turn_end: str = ""
    """The one end token that the bridge of `renderers` goes on from, where it refuses others."""
    marks: tuple[str, ...] = ()
    """What calls are written with, where these are tokens. Spelled out they are text."""

    think: tuple[str, str] | None = ("<think>", "</think>")
    """Around reasoning; spelled out in a vocabulary that has no such tokens. None where there is none."""
    label: str = ""
    """What reasoning begins with, that is none of it."""
    lead: str = ""
    """What stands before all else where the prompt leaves reasoning to the model."""
    answer_head: tuple[str, ...] = ()
    """What stands behind reasoning, before an answer: marks and texts."""
    gap: str = ""
    """What may stand behind that."""
    thinks_unasked: bool = True
    """Whether marks of thoughts are marks where the template is told that the model doesn't think."""
    thinks_again: bool = False
    """Whether a thought may begin behind text."""
    call_ends_thought: Ends = "never"
    """Whether the begin of a call does so."""
    reasoning_strip: str | None = None
    """The white space around it that is the template's; None for all, as `str.strip` has it."""
    content_strip: str | None = None
    before_calls: str = ""
    """What stands between content and calls, where content keeps its white space."""

    sections: tuple[tuple[str, str], ...] = ()
    """What may stand around all calls."""
    needs_section: bool = False
    """Whether calls are only calls there."""
    block: tuple[str, str] | None = None
    """What calls begin and end with."""
    keeps_marks: bool = False
    """Whether these are read with what is between them."""
    calls: CallReader | None = None

    written: WrittenCalls | None = None
    """What the grammar is made of; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenCalls:
    """The texts that calls are written with, marks among them."""

    begin: str = ""
    """Before the first call."""
    opening: str = ""
    """Before each call."""
    function: tuple[str, str] = ("", "")
    """Around a function's name."""
    spelled: SpelledCalls | None = None
    """What stands in the place of that, where arguments are written one by one and not as JSON."""
    closing: str = ""
    """Behind the arguments."""
    between: str = ""
    end: str = ""
    """Behind the last call."""
    ends_line: bool = False
    """Whether a line break may follow that."""
    alone: bool = False
    """Whether a reply is text or one call, which begins with a brace and stands between no marks."""


_TOOL_CALL = ("<tool_call>", "</tool_call>")
_HERMES = Syntax(
    answers=("<|im_start|>",),
    marks=_TOOL_CALL,
    gap="\n\n",
    call_ends_thought="where it has no end",
    block=_TOOL_CALL,
    calls=JsonCalls(),
    written=WrittenCalls(
        opening="<tool_call>\n",
        function=('{"name": "', '", "arguments": '),
        closing="}\n</tool_call>",
        between="\n",
    ),
)
_QWEN_CALLS = SpelledCalls(
    ("<function=", ">\n"), ("<parameter=", ">\n", "\n</parameter>\n"), "</function>\n", python_words=True
)
_QWEN_WRITTEN = WrittenCalls(opening="<tool_call>\n", spelled=_QWEN_CALLS, closing="</tool_call>", between="\n")
_QWEN_XML = replace(_HERMES, calls=_QWEN_CALLS, written=_QWEN_WRITTEN)
_NEMOTRON = replace(_QWEN_XML, gap="\n", written=replace(_QWEN_WRITTEN, ends_line=True))

_GLM_MARKS = (*_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def _glm(*, line: str) -> Syntax:
    """`line` ends the lines that a call is written in."""
    calls = SpelledCalls(("", line), ("<arg_key>", f"</arg_key>{line}<arg_value>", f"</arg_value>{line}"))
    return Syntax(
        answers=("<|assistant|>",),
        header="",
        marks=_GLM_MARKS,
        lead=line,
        gap=line,
        thinks_unasked=False,
        thinks_again=True,
        call_ends_thought="always",
        block=_TOOL_CALL,
        calls=calls,
        written=WrittenCalls(
            opening="<tool_call>",
            spelled=calls,
            closing="</tool_call>",
            between=line,
        ),
    )


def _laguna(*, line: str, verbatim: bool) -> Syntax:
    """GLM's, but for the marks of arguments, which are text."""
    glm = _glm(line=line)
    assert glm.written is not None
    return replace(
        glm,
        answers=("<assistant>",),
        header="<assistant>",
        marks=_TOOL_CALL,
        thinks_unasked=True,
        thinks_again=False,
        call_ends_thought="never",
        reasoning_strip="" if verbatim else None,
        content_strip="" if verbatim else "\n",
        lead="",
        written=replace(glm.written, ends_line=bool(line)),
    )


_MINIMAX_BLOCK = ("<minimax:tool_call>", "</minimax:tool_call>")
_MINIMAX_CALLS = SpelledCalls(('<invoke name="', '">\n'), ('<parameter name="', '">', "</parameter>\n"), "</invoke>\n")
_MINIMAX = Syntax(
    answers=("]~b]",),
    header="]~b]ai\n",
    marks=_MINIMAX_BLOCK,
    gap="\n\n",
    call_ends_thought="where it has no end",
    block=_MINIMAX_BLOCK,
    calls=_MINIMAX_CALLS,
    written=WrittenCalls(
        begin="<minimax:tool_call>\n",
        spelled=_MINIMAX_CALLS,
        end="</minimax:tool_call>",
    ),
)


def _hy(mark: str) -> str:
    return re.sub(r"<(/?\w+)>", r"<\1:opensource>", mark)


_HY3_CALLS = SpelledCalls(
    ("", _hy("<tool_sep>\n")), (_hy("<arg_key>"), _hy("</arg_key>\n<arg_value>"), _hy("</arg_value>\n"))
)
_HY3 = Syntax(
    answers=("<\uff5chy_Assistant:opensource\uff5c>",),
    header="<\uff5chy_Assistant:opensource\uff5c>",
    marks=tuple(
        _hy(f"<{name}>")
        for name in (
            *("tool_calls", "/tool_calls", "tool_call", "/tool_call", "tool_sep"),
            *("arg_key", "/arg_key", "arg_value", "/arg_value"),
        )
    ),
    think=("<think:opensource>", "</think:opensource>"),
    sections=((_hy("<tool_calls>"), _hy("</tool_calls>")),),
    block=(_hy("<tool_call>"), _hy("</tool_call>")),
    calls=_HY3_CALLS,
    written=WrittenCalls(
        begin=_hy("<tool_calls>\n"),
        opening=_hy("<tool_call>"),
        spelled=_HY3_CALLS,
        closing=_hy("</tool_call>\n"),
        end=_hy("</tool_calls>"),
    ),
)

_KIMI_MARKS = tuple(
    f"<|tool_call{name}|>" for name in ("s_section_begin", "s_section_end", "_begin", "_argument_begin", "_end")
)
_KIMI = Syntax(
    answers=("<|im_assistant|>",),
    header="<|im_assistant|>assistant<|im_middle|>",
    marks=_KIMI_MARKS,
    call_ends_thought="where it has no end",
    sections=((_KIMI_MARKS[0], _KIMI_MARKS[1]),),
    needs_section=True,
    block=(_KIMI_MARKS[2], _KIMI_MARKS[4]),
    calls=NamedJson(_KIMI_MARKS[3], kimi_parts),
    written=WrittenCalls(
        begin=_KIMI_MARKS[0],
        opening=_KIMI_MARKS[2],
        function=("functions.", f":{INDEX}{_KIMI_MARKS[3]}"),
        closing=_KIMI_MARKS[4],
        end=_KIMI_MARKS[1],
    ),
)

_DEEPSEEK_MARKS = tuple(
    f"<\uff5ctool\u2581{name}\uff5c>"
    for name in ("calls\u2581begin", "calls\u2581end", "call\u2581begin", "call\u2581end", "sep")
)
_DEEPSEEK = Syntax(
    answers=("<\uff5cAssistant\uff5c>", "<\uff5ctool\u2581outputs\u2581end\uff5c>"),
    header="<\uff5cAssistant\uff5c>",
    marks=_DEEPSEEK_MARKS,
    gap="\n\n",
    sections=((_DEEPSEEK_MARKS[0], _DEEPSEEK_MARKS[1]),),
    needs_section=True,
    block=(_DEEPSEEK_MARKS[2], _DEEPSEEK_MARKS[3]),
    calls=NamedJson(_DEEPSEEK_MARKS[4], deepseek_parts),
    written=WrittenCalls(
        begin=_DEEPSEEK_MARKS[0],
        opening=_DEEPSEEK_MARKS[2],
        function=(f"function{_DEEPSEEK_MARKS[4]}", "\n```json\n"),
        closing=f"\n```{_DEEPSEEK_MARKS[3]}",
        between="\n",
        end=_DEEPSEEK_MARKS[1],
    ),
)
_DSML = "\uff5cDSML\uff5c"
_DEEPSEEK_V4 = Syntax(
    answers=("<\uff5cAssistant\uff5c>",),
    header="",
    thinks_again=True,
    call_ends_thought="always",
    content_strip="",
    before_calls="\n\n",
    sections=tuple((f"<{_DSML}{name}>", f"</{_DSML}tool_calls>") for name in ("tool_calls", "toolcalls", "tool")),
    block=(f"<{_DSML}invoke", f"</{_DSML}invoke>"),
    keeps_marks=True,
    calls=DsmlCalls(),
)
_LLAMA = Syntax(
    answers=("<|end_header_id|>",),
    header="",
    think=None,
    calls=JsonCalls(exact=True),
    written=WrittenCalls(function=('{"name": "', '", "parameters": '), closing="}", alone=True),
)
_GEMMA = Syntax(
    answers=("<|turn>", "<tool_response|>"),
    header="<|turn>model\n",
    turn_end="<turn|>",
    marks=("<|tool_call>", "<tool_call|>", '<|"|>'),
    think=("<|channel>", "<channel|>"),
    label="thought\n",
    call_ends_thought="where it has no end",
    block=("<|tool_call>", "<tool_call|>"),
    calls=GemmaCalls(),
)

# Of these a reply is several messages (`segmented_replies`).
_HARMONY = Syntax(
    header="",
    marks=("<|start|>", "<|channel|>"),
    think=("<|message|>", "<|end|>"),
    answer_head=("<|start|>", "assistant", "<|channel|>", "final", "<|message|>"),
)
_INKLING = Syntax(
    answers=("<|message_model|>",),
    header="",
    marks=("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"),
    think=("<|content_thinking|>", "<|end_message|>"),
    answer_head=("<|message_model|>", "<|content_text|>"),
    reasoning_strip="",
    content_strip="",
)

SYNTAXES: Final[Mapping[str, Syntax]] = {
    "gpt-oss": _HARMONY,
    "inkling": _INKLING,
    **dict.fromkeys(("qwen3", "qwen3-vl"), _HERMES),
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8", "prime-qwen3"), _QWEN_XML),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), _KIMI),
    "minimax-m2": _MINIMAX,
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _NEMOTRON),
    "hy3": _HY3,
    "llama-3": _LLAMA,
    "glm-4.5": _glm(line="\n"),
    **dict.fromkeys(("glm-5", "glm-5.1", "glm-5.3"), _glm(line="")),
    **dict.fromkeys(("laguna-xs.2", "laguna-m.1"), _laguna(line="\n", verbatim=False)),
    **dict.fromkeys(("laguna-xs-2.1", "laguna-s-2.1"), _laguna(line="", verbatim=True)),
    **dict.fromkeys(("deepseek-v3", "deepseek-r1"), _DEEPSEEK),
    "deepseek-v4": _DEEPSEEK_V4,
    "gemma4": _GEMMA,
}

_TEMPLATE = Syntax(header="<|im_start|>assistant\n", reasoning_strip="", content_strip="")
TEMPLATES: Final[Mapping[str | None, Syntax]] = {
    None: _TEMPLATE,
    **{
        parser: replace(
            _TEMPLATE,
            marks=syntax.marks,
            sections=syntax.sections,
            needs_section=syntax.needs_section,
            block=syntax.block,
            calls=syntax.calls,
        )
        for parser, syntax in (
            ("qwen3", _HERMES),
            ("qwen3.5", _QWEN_XML),
            ("glm", SYNTAXES["glm-4.5"]),
            ("deepseek-v3", _DEEPSEEK),
        )
    },
}
"""For models' own templates, by the parser that `loading` names."""
