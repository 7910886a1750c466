"""Grammars of replies, in the form of SGLang's `structural_tag`: of the calls that may be made, or of a request's own
(a JSON schema, a regex, EBNF), each behind a thought where the prompt leaves one. Pure.

Marks stand in them as tokens, by id: written out letter by letter they would be none to a reader, and a model that is
made to call may well do that. Reasoning and text before calls stay free, but for the format's marks and the tokens that
end a turn.

All else is text, other marks too. xgrammar 0.2.7, which compiles them, keeps what it made for a part of a grammar, and
takes two parts for one where tokens alone differ: it knows a token by its place among those of its grammar, in the
order in which they first come. So all grammars of a model begin with all tokens, in one order, in a part that nothing
matches. The tests compile all that can be asked for side by side.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from rolloutfleet_proxy.tokens.call_reading import CallReader, SpelledCalls
from rolloutfleet_proxy.tokens.call_syntax import INDEX, Thinking
from rolloutfleet_proxy.tokens.reading import ReplyFormat
from rolloutfleet_proxy.tokens.tool_schemas import Schema
from rolloutfleet_proxy.tokens.vocabulary import Vocabulary

MOST_FUNCTIONS: Final = 256
"""A reply isn't held to a choice of more."""
Form = dict[str, Any]
"""One of xgrammar's formats."""
MOST_SPACES: Final = 8
"""White space in a row within the arguments: a model that is forced to call may write it without end."""
PARAMETER_NAME: Final = re.compile(r"(?![\s'])[^\x00-\x1f<>\"]+(?<!\s)")
"""What every format can write as the name of a parameter."""
_ANY_NAME: Final[Form] = {"type": "regex", "pattern": "[A-Za-z0-9_.-]{1,64}"}

_VALUES: Final[dict[str, list[Any]]] = {"boolean": [True, False], "null": [None]}
_NOTHING: Final[Form] = {"type": "grammar", "grammar": 'root ::= nothing\nnothing ::= nothing "x"'}
"""A rule that never ends. An empty class of characters won't do: xgrammar takes it for all beyond ASCII."""
_NUMBER: Final[Form] = {"type": "regex", "pattern": "[0-9]{1,4}"}
_NO_CALL: Final[Form] = {"type": "regex", "pattern": r"[^{\x00-\x20]"}
"""How text begins where a call begins with a brace."""
_OWN: Final[Mapping[str, Callable[[str], Form]]] = {
    "json_schema": lambda schema: {"type": "json_schema", "json_schema": json.loads(schema)},
    "regex": lambda pattern: {"type": "regex", "pattern": pattern},
    "ebnf": lambda grammar: {"type": "grammar", "grammar": grammar},
}
"""A request's own grammars by SGLang's sampling parameter. A `structural_tag` of its own is of the whole reply."""


class Function(Struct, frozen=True):
    name: str
    arguments: Schema
    """One of `arguments_schemas`."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The calls that a reply may make."""

    functions: tuple[Function, ...]
    required: bool
    """At least one call."""
    single: bool = False
    """At most one."""


def text(value: str) -> Form:
    return {"type": "const_string", "value": value}


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


class Parameters:
    """How a format writes a function's arguments one by one, strings as they are and all else as JSON.

    A text is read by the parameter's schema (`argument_values`): as another value only where that is allowed, else as
    the string that it is. So strings need no quotes, whatever they look like. One that reads as another allowed value
    can't be written: under integer or string, `12` is the number.
    """

    def __init__(self, calls: SpelledCalls, literal: Callable[[str], list[Form]], kept_out: Sequence[str]) -> None:
        """`literal` has the forms of a text of `calls`. `kept_out` is what a string never holds, beside the texts that
        end it."""
        self._before, self._between, self._end = map(literal, calls.argument)
        ends = filter(None, map(str.strip, (calls.argument[2], calls.end)))
        self._string: Form = {"type": "any_text", "excludes": list(dict.fromkeys((*ends, *kept_out)))}
        self._python_words = calls.python_words

    def forms(self, schema: Schema) -> list[Form]:
        """One for each argument, in the order declared. `schema` is one of `arguments_schemas`."""
        properties = schema.get("properties", {})
        parts: list[Form] = []
        for name, value in properties.items():
            if PARAMETER_NAME.fullmatch(name):
                part = self._argument(text(name), value)
                parts.append(part if name in schema["required"] else optional(part))
        others = schema.get("additionalProperties", not properties)
        if others is not False:
            more = self._argument(_ANY_NAME, {} if others is True else others)
            parts.append({"type": "star", "content": more})
        return parts

    def _argument(self, name: Form, schema: Schema) -> Form:
        return sequence([*self._before, name, *self._between, self._value(schema)])

    def _value(self, schema: Schema) -> Form:
        """With what ends it."""
        if "anyOf" in schema:
            return either([self._value(choice) for choice in schema["anyOf"]])
        kind = schema.get("type", "string")
        if "enum" in schema or kind in _VALUES:
            form = either([text(each) for each in self._texts(schema.get("enum") or _VALUES[kind])])
        elif kind == "string":
            form = self._string
        else:
            form = json_value(schema)
        return sequence([form, *self._end])

    def _texts(self, values: list[Any]) -> list[str]:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        if self._python_words:
            texts += [str(value) for value in values if value is None or isinstance(value, bool)]
        return list(dict.fromkeys(texts))


class ReplyGrammar:
    """The grammars of one chat format in one vocabulary."""

    def __init__(self, replies: ReplyFormat, vocabulary: Vocabulary, ends: Sequence[int]) -> None:
        """`ends` are the tokens that end a turn."""
        self._replies = replies
        self._syntax = syntax = replies.syntax
        think = syntax.think or ()
        ids = ((mark, vocabulary.convert_tokens_to_ids(mark)) for mark in (*syntax.marks, *think))
        self._tokens: dict[str, Form] = {
            mark: {"type": "token", "token": each} for mark, each in ids if each in vocabulary.marks
        }
        self.thinks = bool(think) and all(mark in self._tokens for mark in think)
        has_answer_mark = any(vocabulary.convert_tokens_to_ids(each) is not None for each in syntax.begins[:1])
        is_held = syntax.calls is not None and syntax.calls.is_held
        self.holds_calls = is_held and has_answer_mark and all(mark in self._tokens for mark in syntax.marks)
        """Whether there is a grammar of the format's tool calls."""
        around = filter(None, (*syntax.around.sections, syntax.around.block[0]))
        kept_out = (*self._tokens, *think, *around, *(vocabulary.decode([each]) for each in ends))
        self._kept_out = tuple(dict.fromkeys(kept_out))
        """What free text never holds."""
        self._free: Form = {"type": "any_text", "excludes": list(self._kept_out)}
        self._order = optional(sequence([_NOTHING, *self._tokens.values()]))

    def of_calls(self, prompt_ids: Sequence[int], wanted: Wanted, *, json_schema: str | None = None) -> str:
        """What holds the reply to a prompt to the calls that are wanted. Where none is required it may be text, with
        calls behind it or not; under a JSON schema it is JSON, or calls alone."""
        calls, thinking = self._calls(wanted), self._replies.thinking(prompt_ids)
        if wanted.required:
            reply = calls
        elif json_schema is not None:
            answer = _OWN["json_schema"](json_schema)
            reply = [either([sequence(calls), answer] if calls else [answer])]
        elif not self._syntax.around.block[0]:
            reply = [either([sequence([_NO_CALL, self._free]), *calls])]
        else:
            reply = [self._free, *map(optional, calls)]
        lead = self._literal(self._syntax.lead) if thinking == "free" else []
        return self._tag([*lead, *self._thought(thinking), *reply])

    def thinking_first(self, prompt_ids: Sequence[int], sampling: Mapping[str, Any]) -> str | None:
        """What lets the reply to a prompt think before what the grammar of its sampling parameters holds it to; None
        where that grammar is to hold from the start, or there is none."""
        name = next((name for name in _OWN if name in sampling), None)
        if name is None or not self.thinks or (thinking := self._replies.thinking(prompt_ids)) == "closed":
            return None
        thought = self._thought(thinking, lead=self._syntax.lead, head=self._syntax.answer_head)
        return self._tag([*thought, _OWN[name](sampling[name])])

    def _tag(self, parts: Sequence[Form]) -> str:
        form = sequence([self._order, *parts] if self._tokens else parts)
        return json.dumps({"type": "structural_tag", "format": form}, ensure_ascii=False)

    def _thought(self, thinking: Thinking, *, lead: str = "", head: str = "") -> list[Form]:
        """`lead` stands before a thought that the reply opens, `head` behind any."""
        syntax = self._syntax
        gap = [optional(text(letter)) for letter in syntax.gap]
        if syntax.think is None or not self.thinks or thinking == "closed":
            return gap
        opened, closed = map(self._tokens.__getitem__, syntax.think)
        thought = [self._free, closed, *self._literal(head), *gap]
        if thinking == "open":
            return thought
        return [optional(sequence([*self._literal(lead), opened, *self._literal(syntax.label), *thought]))]

    def _calls(self, wanted: Wanted) -> list[Form]:
        """The form of all of them; nothing where none is wanted."""
        around, reader = self._syntax.around, self._syntax.calls
        if not wanted.functions:
            return []
        assert reader is not None and reader.is_held, "no grammar of this format's calls"
        before, behind = reader.function
        arguments = self._arguments(reader)
        named = self._literal(behind)
        functions = [sequence([text(each.name), *named, *arguments(each.arguments)]) for each in wanted.functions]
        one = [*self._literal(around.opening + before), either(functions), *self._literal(reader.end + around.closing)]
        between = [optional(form) for form in self._literal(around.between)]
        is_only = wanted.single or not around.block[0]
        more = [] if is_only else [{"type": "star", "content": sequence([*between, *one])}]
        line = [optional(text("\n"))] if around.ends_line else []
        return [sequence([*self._literal(around.begin), *one, *more, *self._literal(around.end), *line])]

    def _arguments(self, reader: CallReader) -> Callable[[Schema], Sequence[Form]]:
        if isinstance(reader, SpelledCalls):
            return Parameters(reader, self._literal, self._kept_out).forms
        return lambda schema: [json_value(schema)]

    def _literal(self, literal: str) -> list[Form]:
        """A text of the format's description, its marks as tokens."""
        parts = re.split(f"({'|'.join(map(re.escape, [*self._tokens, INDEX]))})", literal)
        return [_NUMBER if part == INDEX else self._tokens.get(part) or text(part) for part in parts if part]
