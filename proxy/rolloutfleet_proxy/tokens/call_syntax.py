"""How each chat format writes thoughts and tool calls: one entry a format, from which its replies are read and the
grammar of its calls is made.

What an entry says is what the format's template writes. A reader takes looser forms as well (`call_reading`).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Final, Literal

from rolloutfleet_proxy.tokens import call_reading as forms
from rolloutfleet_proxy.tokens.model_files import ChatTemplate

WRITABLE_NAME: Final = re.compile(r"[^\s\x00-\x1f<>{}\"\\:]{1,256}")
"""Names that every format can write."""
MARK: Final = re.compile(r"<[^<>]+>|\]~b\]")
"""Marks of formats, as they stand in a text of a description."""
INDEX: Final = "{index}"
"""Stands in a text for the number of a call."""


Thinking = Literal["free", "open", "closed"]
"""What a prompt's end leaves to the reply."""
Ends = Literal["never", "where it has no end", "always"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Around:
    """What stands around calls: marks, and white space beside them that only the template writes."""

    begin: str = ""
    """Before the first call."""
    other_begins: tuple[str, ...] = ()
    """What is read as that."""
    needs_begin: bool = False
    """Whether calls are only calls behind it."""
    opening: str = ""
    """Before each call. Where that is nothing, several calls stand between `begin` and `end`."""
    closing: str = ""
    """Behind each."""
    between: str = ""
    end: str = ""
    """Behind the last call."""
    ends_line: bool = False
    """Whether a line break may follow that."""

    @property
    def block(self) -> tuple[str, str]:
        """The marks of what is read as a whole; empty where a whole reply is."""
        begin, end = (self.opening, self.closing) if self.opening else (self.begin, self.end)
        return begin.strip(), end.strip()

    @property
    def sections(self) -> dict[str, str]:
        """The marks around several blocks, the ends by the begins."""
        begins = (self.begin, *self.other_begins) if self.opening and self.begin else ()
        return {begin.strip(): self.end.strip() for begin in begins}


@dataclass(frozen=True, slots=True, kw_only=True)
class Syntax:
    """How a format writes replies. White space that stands beside a mark is the template's."""

    header: str = ""
    """What the prompt of an answer ends in, which some models repeat. It begins with a mark."""
    answers: tuple[str, ...] | None = None
    """The marks behind which an answer begins, where these are others than that of `header`; a vocabulary has the first
    of them at least."""
    same_ends: tuple[str, ...] = ()
    """End tokens of a turn, where the bridge of `renderers` goes on from the first alone."""
    marks: tuple[str, ...] = ()
    """What calls are written with, where these are tokens. Spelled out they are text."""

    behind_end: str = ""
    """Text that the template writes behind a turn's end, where the bridge of `renderers` leaves that out."""
    think: tuple[str, str] | None = ("<think>", "</think>")
    """Around reasoning; spelled out in a vocabulary that has no such tokens. None where there is none."""
    label: str = ""
    """What reasoning begins with, that is none of it."""
    lead: str = ""
    """What stands before all else where the prompt leaves reasoning to the model."""
    answer_head: str = ""
    """What stands behind reasoning, before an answer."""
    gap: str = ""
    """White space that may stand behind that, before content and before calls."""
    thinks_unasked: bool = True
    """Whether marks of thoughts are marks where the template is told that the model doesn't think."""
    thinks_again: bool = False
    """Whether a thought may begin behind text."""
    call_ends_thought: Ends = "never"
    """Whether the begin of a call does so."""
    around_reasoning: tuple[str, str] = ("", "")
    """White space between `think` and reasoning."""
    before_calls: str = ""
    """That between content and calls."""
    behind_content: str = ""
    """That between content and the end of a turn."""

    around: Around = Around()
    calls: forms.CallReader | None = None

    @property
    def begins(self) -> tuple[str, ...]:
        """The marks behind which an answer begins."""
        return (*MARK.findall(self.header)[:1],) if self.answers is None else self.answers


_TOOL_CALL = ("<tool_call>", "</tool_call>")
_LINES = ("\n", "\n")
_HERMES = Syntax(
    header="<|im_start|>assistant\n",
    marks=_TOOL_CALL,
    gap="\n\n",
    around_reasoning=_LINES,
    before_calls="\n",
    call_ends_thought="where it has no end",
    around=Around(opening="<tool_call>\n", closing="\n</tool_call>", between="\n"),
    calls=forms.JsonCalls(),
)
_QWEN_XML = replace(
    _HERMES,
    before_calls="\n\n",
    calls=forms.SpelledCalls(
        ("<function=", ">\n"), ("<parameter=", ">\n", "\n</parameter>\n"), "</function>", python_words=True
    ),
)
_NEMOTRON = replace(_QWEN_XML, gap="\n", before_calls="\n", around=replace(_HERMES.around, ends_line=True))

_GLM_MARKS = (*_TOOL_CALL, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")


def _glm(*, line: str) -> Syntax:
    """`line` ends the lines that a call is written in."""
    return Syntax(
        answers=("<|assistant|>",),
        marks=_GLM_MARKS,
        lead=line,
        gap=line,
        before_calls=line,
        thinks_unasked=False,
        thinks_again=True,
        call_ends_thought="always",
        around=Around(opening="<tool_call>", closing="</tool_call>", between=line),
        calls=forms.SpelledCalls(("", line), ("<arg_key>", f"</arg_key>{line}<arg_value>", f"</arg_value>{line}")),
    )


def _laguna(*, line: str) -> Syntax:
    """Its calls are GLM's, but for the marks of arguments, which are text."""
    glm = _glm(line=line)
    return Syntax(
        header="<assistant>",
        marks=_TOOL_CALL,
        behind_end=line,
        gap=line,
        around_reasoning=(line, line),
        before_calls=line,
        behind_content=line,
        around=replace(glm.around, ends_line=bool(line)),
        calls=glm.calls,
    )


_MINIMAX = Syntax(
    header="]~b]ai\n",
    marks=("<minimax:tool_call>", "</minimax:tool_call>"),
    gap="\n\n",
    around_reasoning=_LINES,
    before_calls="\n",
    call_ends_thought="where it has no end",
    around=Around(begin="<minimax:tool_call>\n", end="</minimax:tool_call>"),
    calls=forms.SpelledCalls(('<invoke name="', '">\n'), ('<parameter name="', '">', "</parameter>\n"), "</invoke>\n"),
)


def _hy(mark: str) -> str:
    return re.sub(r"<(/?\w+)>", r"<\1:opensource>", mark)


_HY3 = Syntax(
    header="<\uff5chy_Assistant:opensource\uff5c>",
    marks=tuple(map(_hy, ("<tool_calls>", "</tool_calls>", "<tool_sep>", *_GLM_MARKS))),
    think=("<think:opensource>", "</think:opensource>"),
    around=Around(
        begin=_hy("<tool_calls>\n"), opening=_hy("<tool_call>"), closing=_hy("</tool_call>\n"), end=_hy("</tool_calls>")
    ),
    calls=forms.SpelledCalls(
        ("", _hy("<tool_sep>\n")), (_hy("<arg_key>"), _hy("</arg_key>\n<arg_value>"), _hy("</arg_value>\n"))
    ),
)


def _section(marks: Sequence[str], *, between: str = "") -> Around:
    """`marks` stand around all calls, around each, and within one."""
    begin, end, opening, closing, _ = marks
    return Around(begin=begin, needs_begin=True, opening=opening, closing=closing, between=between, end=end)


_KIMI_MARKS = tuple(
    f"<|tool_call{name}|>" for name in ("s_section_begin", "s_section_end", "_begin", "_end", "_argument_begin")
)
_KIMI = Syntax(
    header="<|im_assistant|>assistant<|im_middle|>",
    marks=_KIMI_MARKS,
    call_ends_thought="where it has no end",
    around=_section(_KIMI_MARKS),
    calls=forms.NamedJson(_KIMI_MARKS[4], forms.kimi_parts, ("functions.", f":{INDEX}{_KIMI_MARKS[4]}")),
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
    around_reasoning=_LINES,
    around=_section(_DEEPSEEK_MARKS, between="\n"),
    calls=forms.NamedJson(
        _DEEPSEEK_MARKS[4], forms.deepseek_parts, (f"function{_DEEPSEEK_MARKS[4]}", "\n```json\n"), "\n```"
    ),
)
_DSML = "\uff5cDSML\uff5c"
_DEEPSEEK_V4 = Syntax(
    answers=("<\uff5cAssistant\uff5c>",),
    marks=(_DSML,),
    thinks_again=True,
    call_ends_thought="always",
    before_calls="\n\n",
    around=Around(
        begin=f"<{_DSML}tool_calls>",
        other_begins=(f"<{_DSML}toolcalls>", f"<{_DSML}tool>"),
        opening=f'<{_DSML}invoke name="',
        closing=f"</{_DSML}invoke>",
        end=f"</{_DSML}tool_calls>",
    ),
    calls=forms.DsmlCalls(("", '">\n'), (f'<{_DSML}parameter name="', '">', f"</{_DSML}parameter>\n")),
)
_LLAMA = Syntax(
    answers=("<|end_header_id|>",),
    think=None,
    calls=forms.JsonCalls(exact=True, function=('{"name": "', '", "parameters": ')),
)
_GEMMA_MARKS = ("<|tool_call>", "<tool_call|>", '<|"|>')
_GEMMA = Syntax(
    answers=("<|turn>", "<tool_response|>"),
    header="<|turn>model\n",
    same_ends=("<turn|>", "<eos>"),
    marks=_GEMMA_MARKS,
    think=("<|channel>", "<channel|>"),
    label="thought\n",
    around_reasoning=("", "\n"),
    call_ends_thought="where it has no end",
    around=Around(opening=_GEMMA_MARKS[0], closing=_GEMMA_MARKS[1]),
    calls=forms.GemmaCalls(_GEMMA_MARKS[2]),
)

# Of these a reply is several messages (`reply_parsers`).
_HARMONY = Syntax(
    answers=("<|start|>",),
    marks=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"),
    think=("<|message|>", "<|end|>"),
    answer_head="<|start|>assistant<|channel|>final<|message|>",
)
_INKLING = Syntax(
    answers=("<|message_model|>",),
    marks=(
        *("<|message_model|>", "<|content_text|>", "<|content_thinking|>", "<|end_message|>"),
        *("<|content_invoke_tool_json|>", "<|content_invoke_tool_text|>"),
    ),
    think=("<|content_thinking|>", "<|end_message|>"),
    answer_head="<|message_model|><|content_text|>",
)

SYNTAXES: Final[Mapping[str, Syntax]] = {
    "gpt-oss": _HARMONY,
    "inkling": _INKLING,
    **dict.fromkeys(("qwen3", "qwen3-vl"), _HERMES),
    **dict.fromkeys(("qwen3.5", "qwen3.6", "qwen3.8"), _QWEN_XML),
    "prime-qwen3": replace(_QWEN_XML, around_reasoning=("", "")),
    **dict.fromkeys(("kimi-k2", "kimi-k2.5"), _KIMI),
    "minimax-m2": _MINIMAX,
    "nemotron-3": _NEMOTRON,
    **dict.fromkeys(("nemotron-3-ultra", "nemotron-3.5"), replace(_NEMOTRON, around_reasoning=("\n", ""))),
    "hy3": _HY3,
    "llama-3": _LLAMA,
    "glm-4.5": _glm(line="\n"),
    **dict.fromkeys(("glm-5", "glm-5.1", "glm-5.3"), _glm(line="")),
    **dict.fromkeys(("laguna-xs.2", "laguna-m.1"), _laguna(line="\n")),
    **dict.fromkeys(("laguna-xs-2.1", "laguna-s-2.1"), _laguna(line="")),
    **dict.fromkeys(("deepseek-v3", "deepseek-r1"), _DEEPSEEK),
    "deepseek-v4": _DEEPSEEK_V4,
    "gemma4": _GEMMA,
}


_OWN = Syntax(header=_HERMES.header, answers=())


def of_template(template: ChatTemplate | None, token_of: Callable[[str], Any]) -> Syntax:
    """The syntax of a model's own template, with the thoughts and calls whose marks it writes."""
    family, source = Syntax(), template.source if template else ""
    if _DEEPSEEK_MARKS[0] in source:
        family = _DEEPSEEK
    elif _TOOL_CALL[0] in source and token_of(_TOOL_CALL[0]) is not None:
        family = SYNTAXES["glm-4.5"] if "<arg_key>" in source else _QWEN_XML if "<function=" in source else _HERMES
    think = family.think if "<think>" in source else None
    before = _written_before_calls(template, family.around) if template and family.calls else ""
    text = replace(_OWN, think=think, before_calls=before)
    return replace(text, marks=family.marks, around=family.around, calls=family.calls)


def _written_before_calls(template: ChatTemplate, around: Around) -> str:
    """The white space that a template writes between an assistant's text and its first call."""
    call = {"id": "w64rd0000", "type": "function", "function": {"name": "w62rd", "arguments": {"w63rd": 1}}}
    said = {"role": "assistant", "content": "w61rd", "tool_calls": [call]}
    with suppress(ValueError):
        text = template.render([{"role": "user", "content": "w60rd"}, said])
        space = text.partition("w61rd")[2].partition((around.begin or around.opening).strip())[0]
        return space if space.isspace() else ""
    return ""


def rewritten(description: Any, text: Callable[[str], str]) -> Any:
    """A syntax, or a part of one, with other texts in it."""
    if isinstance(description, str):
        return text(description)
    if isinstance(description, tuple):
        return tuple(rewritten(each, text) for each in description)
    if is_dataclass(description) and not isinstance(description, type):
        parts = {each.name: rewritten(getattr(description, each.name), text) for each in fields(description)}
        return replace(description, **parts)
    return description
