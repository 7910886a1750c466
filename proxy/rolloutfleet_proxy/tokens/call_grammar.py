"""The calls that a reply may make, and the parts that its grammar is put together from (`reply_grammar`). Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from msgspec import Struct

from rolloutfleet_proxy.tokens.schemas import Schema

Form = dict[str, Any]
"""One of xgrammar's formats."""

MOST_FUNCTIONS: Final = 256
"""A reply isn't held to a choice of more."""
MOST_SPACES: Final = 8
"""White space in a row within the arguments: a model that is forced to call may write it without end."""
_NAME: Final = re.compile(r"[^\s\x00-\x1f<>\"]+")
"""What every such format can write as the name of a parameter."""
_ANY_NAME: Final[Form] = {"type": "regex", "pattern": "[A-Za-z0-9_.-]{1,64}"}

_VALUES: Final[dict[str, list[Any]]] = {"boolean": [True, False], "null": [None]}


class Function(Struct, frozen=True):
    name: str
    arguments: Schema
    """As `call_schemas` has it."""


class Wanted(Struct, frozen=True, kw_only=True):
    """The calls that a reply may make."""

    functions: tuple[Function, ...]
    required: bool
    """At least one call."""
    single: bool = False
    """At most one."""


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


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a format writes a function's arguments one by one, strings as they are and all else as JSON.

    A text is read by the parameter's schema (`argument_values`): as another value only where that is allowed, else as
    the string that it is. So strings need no quotes, whatever they look like. One that reads as another allowed value
    can't be written: under integer or string, `12` is the number.

    `named` is what stands before a value, by the parameter's name or the form of any name. `end` follows the value, and
    `kept_out` is what a string never holds. `python_words`: `True`, `False` and `None` are written too.
    """

    named: Callable[[Form], Form]
    end: Form
    kept_out: Sequence[str]
    python_words: bool = False

    def forms(self, schema: Schema) -> list[Form]:
        """One for each argument, in the order declared. `schema` is one of `arguments_schemas`."""
        properties = schema.get("properties", {})
        parts: list[Form] = []
        for name, value in properties.items():
            if _NAME.fullmatch(name):
                part = sequence([self.named(text(name)), self._value(value)])
                parts.append(part if name in schema["required"] else optional(part))
        others = schema.get("additionalProperties", not properties)
        if others is not False:
            more = self._value({} if others is True else others)
            parts.append({"type": "star", "content": sequence([self.named(_ANY_NAME), more])})
        return parts

    def _value(self, schema: Schema) -> Form:
        """With what ends it."""
        if "anyOf" in schema:
            return either([self._value(choice) for choice in schema["anyOf"]])
        kind = schema.get("type", "string")
        if "enum" in schema or kind in _VALUES:
            form = either([text(each) for each in self._texts(schema.get("enum") or _VALUES[kind])])
        elif kind == "string":
            form = {"type": "any_text", "excludes": list(self.kept_out)}
        else:
            form = json_value(schema)
        return sequence([form, self.end])

    def _texts(self, values: list[Any]) -> list[str]:
        texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
        if self.python_words:
            texts += [str(value) for value in values if value is None or isinstance(value, bool)]
        return list(dict.fromkeys(texts))
