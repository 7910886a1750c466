"""Forms of arguments that a chat format writes one by one, strings as they are and all else as JSON. Pure.

A text is read by the parameter's schema (`argument_values`): as another value only where that is allowed, else as the
string that it is. So strings need no quotes, whatever they look like. One that reads as another allowed value can't be
written: under integer or string, `12` is the number.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet_proxy.tokens.argument_values import PYTHON_WORDS
from rolloutfleet_proxy.tokens.call_grammar import Form, either, json_value, optional, sequence, text
from rolloutfleet_proxy.tokens.call_schemas import ANY_OBJECT, Schema, most_written

_NAME: Final = re.compile(r"[^\s\x00-\x1f<>\"]+")
"""What every such format can write as the name of a parameter."""
_ANY_NAME: Final = "[A-Za-z0-9_.-]{1,64}"

_WORDS: Final = {"boolean": ("true", "false"), "null": ("null",)}
_FORM: Final = 40
"""Letters that each form counts, beside those of its schema."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a format writes a function's arguments.

    `named` is what stands before a value, by the parameter's name or the form of any name. `end` follows the value, and
    `kept_out` is what a string never holds. `python_words`: `True`, `False` and `None` are written too.
    """

    named: Callable[[Form], Form]
    end: Form
    kept_out: Sequence[str]
    python_words: bool = False

    def forms(self, schema: Schema) -> list[Form]:
        """One for each argument, in the order declared; any, where those would come to too much."""
        try:
            return self._declared(schema)
        except TooLong:
            return self._declared(ANY_OBJECT)

    def _declared(self, schema: Schema) -> list[Form]:
        values = _Values(self, schema.get("$defs", {}), room=most_written(schema))
        properties = schema.get("properties", {})
        parts: list[Form] = []
        for name, value in properties.items():
            if _NAME.fullmatch(name):
                part = sequence([self.named(text(name)), values.of(value)])
                parts.append(part if name in schema["required"] else optional(part))
        others = schema.get("additionalProperties", not properties)
        if others is not False:
            more = values.of({} if others is True else others)
            name = {"type": "regex", "pattern": _ANY_NAME}
            parts.append({"type": "star", "content": sequence([self.named(name), more])})
        return parts


class TooLong(Exception):
    """The forms of a function's arguments take more room than its schema has."""


class _Values:
    """Forms of values, each with what ends it. Raises `TooLong` past `room` letters."""

    def __init__(self, written: Parameters, definitions: dict[str, Any], *, room: int) -> None:
        self._room = room
        self._end = written.end
        self._words = PYTHON_WORDS if written.python_words else {}
        self._text: Form = {"type": "any_text", "excludes": list(written.kept_out)}
        self._definitions = definitions
        self._definitions_length = len(json.dumps(definitions))

    def of(self, schema: Schema) -> Form:
        reference = schema.get("$ref")
        if reference is not None:
            return self.of(self._definitions.get(reference.removeprefix("#/$defs/"), {}))
        if "enum" in schema:
            return self._ended(either(self._texts(schema)))
        if "anyOf" in schema:
            return either([self.of(choice) for choice in schema["anyOf"]])
        kinds = schema.get("type", "string")
        if isinstance(kinds, list):
            return either([self.of({**schema, "type": kind}) for kind in kinds])
        if kinds == "string":
            return self._ended(self._text)
        value = json_value({**schema, **self._defined(schema)})
        return either([self._ended(each) for each in (value, *map(text, self._spelled(_WORDS.get(kinds, ()))))])

    def _texts(self, schema: Schema) -> list[Form]:
        self._take(len(json.dumps(schema)))
        texts = [value if isinstance(value, str) else json.dumps(value) for value in schema["enum"]]
        words = self._spelled([json.dumps(value) for value in schema["enum"]])
        return [text(each) for each in dict.fromkeys((*texts, *words))]

    def _spelled(self, texts: Sequence[str]) -> list[str]:
        """Python's words for those of JSON."""
        return [word for word, json_word in self._words.items() if json_word in texts]

    def _defined(self, schema: Schema) -> Schema:
        written = json.dumps(schema)
        refers = bool(self._definitions) and '"$ref"' in written
        self._take(len(written) + (self._definitions_length if refers else 0))
        return {"$defs": self._definitions} if refers else {}

    def _ended(self, form: Form) -> Form:
        self._take(_FORM)
        return sequence([form, self._end])

    def _take(self, letters: int) -> None:
        self._room -= letters
        if self._room < 0:
            raise TooLong
