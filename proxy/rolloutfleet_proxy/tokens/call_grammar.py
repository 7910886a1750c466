"""A grammar for replies that are held to a choice of tools, in the form of SGLang's `structural_tag`. Pure.

The marks that open and close a call stand in it as tokens, by id: written out letter by letter they would be no call
to a parser, and a model that is made to call may well do that. Reasoning and text before the calls stay free, but for
the format's marks and the tokens that end a turn.

All else is text, other marks too. xgrammar 0.2.7, which compiles it, keeps what it made for a part of a grammar, and
takes two parts for one where tokens alone differ: it knows a token by its place among those of its grammar, in the
order in which they first come. So all grammars of a model begin with all tokens, in one order, in a part that nothing
matches. The tests compile all that can be asked for side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from msgspec import Struct

from rolloutfleet_proxy.tokens.call_schemas import Schema

Form = dict[str, Any]
"""One of xgrammar's formats."""

MOST_FUNCTIONS: Final = 256
"""A reply isn't held to a choice of more."""
MOST_SPACES: Final = 8
"""White space in a row within the arguments: a model that is forced to call may write it without end."""


class Function(Struct, frozen=True):
    name: str
    arguments: Schema
    """As `call_schemas` has it."""


class Wanted(Struct, frozen=True, kw_only=True):
    """What calls a reply may make."""

    functions: tuple[Function, ...]
    required: bool
    """At least one call."""
    single: bool = False
    """At most one."""


class Thinking(Enum):
    """What a prompt's end leaves to the reply."""

    FREE = "free"
    OPEN = "open"
    CLOSED = "closed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Marks:
    """The tokens of a chat format in one vocabulary."""

    tokens: tuple[int, ...]
    """What calls are written with."""
    answers: frozenset[int]
    """Behind the last of these in a prompt the answer begins."""
    think: tuple[int, int] | None
    """What opens and closes reasoning, as tokens of a prompt."""
    think_texts: tuple[str, str]
    kept_out: tuple[str, ...]
    """What free text never holds: marks, and tokens that end a turn."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CallForms:
    """How a chat format writes calls."""

    begin: Sequence[Form] = ()
    """What comes before the first call."""
    opening: Sequence[Form]
    """What each call begins with."""
    named: Callable[[str], Sequence[Form]]
    """A function's name, and what leads to its arguments."""
    arguments: Callable[[Schema], Sequence[Form]] = lambda schema: [json_value(schema)]
    """By their schema."""
    closing: Sequence[Form]
    between: Form | None = None
    end: Sequence[Form] = ()
    """What comes behind the last call."""
    alone: bool = False
    """A reply is text or one call, which begins with a brace and stands between no marks."""
    lead: str = ""
    """What stands before all else where the prompt leaves reasoning to the model."""
    gap: str = "\n\n"
    """What may stand between reasoning and the rest."""


def thinking_at(prompt_ids: Sequence[int], marks: Marks) -> Thinking:
    """Whether a prompt ends in open reasoning, in closed, or leaves it to the model."""
    if marks.think is None:
        return Thinking.CLOSED
    for token_id in reversed(prompt_ids[-_TAIL_TOKENS:]):
        if token_id in marks.think:
            return Thinking.OPEN if token_id == marks.think[0] else Thinking.CLOSED
        if token_id in marks.answers:
            break
    return Thinking.FREE


def structural_tag(wanted: Wanted, marks: Marks, forms: CallForms, thinking: Thinking) -> str:
    """The grammar as JSON."""
    parts = [*token_order(marks), *_reasoning(marks, forms, thinking)]
    calls = _calls(wanted, forms)
    if wanted.required:
        parts += calls
    else:
        parts += _text_and_calls(marks, forms, calls)
    return json.dumps({"type": "structural_tag", "format": sequence(parts)}, ensure_ascii=False)


def text(value: str) -> Form:
    return {"type": "const_string", "value": value}


def token(token_id: int) -> Form:
    return {"type": "token", "token": token_id}


def json_value(schema: Schema) -> Form:
    return {"type": "json_schema", "json_schema": schema, "max_whitespace_cnt": MOST_SPACES}


def sequence(parts: Sequence[Form]) -> Form:
    """The parts one behind the other, texts that meet as one."""
    flat: list[Form] = []
    for part in parts:
        for each in part["elements"] if part["type"] == "sequence" else [part]:
            if flat and each["type"] == flat[-1]["type"] == "const_string":
                flat[-1] = text(flat[-1]["value"] + each["value"])
            else:
                flat.append(each)
    return flat[0] if len(flat) == 1 else {"type": "sequence", "elements": flat}


def optional(form: Form) -> Form:
    return {"type": "optional", "content": form}


def either(forms: Sequence[Form]) -> Form:
    return forms[0] if len(forms) == 1 else {"type": "or", "elements": list(forms)}


def token_order(marks: Marks) -> list[Form]:
    """A part that nothing matches, with all tokens of a model's grammars in their one order."""
    return [optional(sequence([_NOTHING, *map(token, marks.tokens)]))] if marks.tokens else []


def gap_forms(gap: str) -> list[Form]:
    """As much as a reply has of what may stand behind reasoning."""
    return [optional(text(letter)) for letter in gap]


def free_text(marks: Marks) -> Form:
    """Text without what free text never holds."""
    return {"type": "any_text", "excludes": list(marks.kept_out)}


# A generation prompt is a few tokens.
_TAIL_TOKENS = 64


_NOTHING: Form = {"type": "grammar", "grammar": 'root ::= nothing\nnothing ::= nothing "x"'}
"""A rule that never ends. An empty class of characters won't do: xgrammar takes it for all beyond ASCII."""


def _text_and_calls(marks: Marks, forms: CallForms, calls: Sequence[Form]) -> list[Form]:
    """Text, and behind it calls or none."""
    if forms.alone:
        said = sequence([{"type": "regex", "pattern": r"[^{\x00-\x20]"}, free_text(marks)])
        return [either([said, sequence(calls)] if calls else [said])]
    return [free_text(marks), optional(sequence(calls))] if calls else [free_text(marks)]


def _reasoning(marks: Marks, forms: CallForms, thinking: Thinking) -> list[Form]:
    gap = gap_forms(forms.gap)
    if marks.think is None or thinking is Thinking.CLOSED:
        return gap
    opened, closed = marks.think_texts
    begin = opened if thinking is Thinking.FREE else ""
    thought: list[Form] = [{"type": "tag", "begin": begin, "content": free_text(marks), "end": closed}, *gap]
    if thinking is Thinking.OPEN:
        return thought
    lead = [text(forms.lead)] if forms.lead else []
    return [*lead, optional(sequence(thought))]


def _calls(wanted: Wanted, forms: CallForms) -> list[Form]:
    if not wanted.functions:
        return []
    function = either(
        [sequence([*forms.named(each.name), *forms.arguments(each.arguments)]) for each in wanted.functions]
    )
    one = [*forms.opening, function, *forms.closing]
    between = [] if forms.between is None else [forms.between]
    more = [] if wanted.single or forms.alone else [{"type": "star", "content": sequence([*between, *one])}]
    return [*forms.begin, *one, *more, *forms.end]
