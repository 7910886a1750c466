"""Forms of arguments that a chat format writes one by one, strings as they are and all else as JSON. Pure.

A parser of such a format takes the text of a parameter that is declared as a string for its value. Any other text it
reads as JSON, and where it is none, as a string. So the text of a parameter that may be a string and something else
must not look like JSON unless it is: a string that does is written as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet_proxy.tokens.call_grammar import Form, either, json_value, optional, sequence, text
from rolloutfleet_proxy.tokens.call_schemas import ANY_OBJECT, Schema, most_written

_NAME: Final = re.compile(r"[^\s\x00-\x1f<>\"]+")
"""What every such format can write as the name of a parameter."""
_ANY_NAME: Final = "[A-Za-z0-9_.-]{1,64}"

_SPACES: Final = r"\x00-\x20"
"""What a parser strips off, as far as a regex of xgrammar's can name it (0.2.7)."""
_NO_JSON: Final = (
    rf'[^"{{\[\-0-9tfn<{_SPACES}]|t[^r<{_SPACES}]|f[^a<{_SPACES}]|n[^u<{_SPACES}]'
    rf"|-[^0-9<{_SPACES}]|-?[0-9]+[ ]*[^0-9.eE<{_SPACES}]"
)
"""How texts begin that are not JSON, whatever follows. None is the beginning of a mark, which is `<` or `[`."""
_FORM: Final = 40
"""Letters that each form counts, beside those of its schema."""


@dataclass(frozen=True, slots=True)
class Parameters:
    """How a format writes a function's arguments.

    `named` is what stands before a value, by the parameter's name or the form of any name. `end` follows the value, and
    `kept_out` is what a string never holds.
    """

    named: Callable[[Form], Form]
    end: Form
    kept_out: Sequence[str]

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
                part = sequence([self.named(text(name)), values.of(value, declared=True)])
                parts.append(part if name in schema["required"] else optional(part))
        others = schema.get("additionalProperties", not properties)
        if others is not False:
            more = values.of({} if others is True else others, declared=True)
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
        self._text: Form = {"type": "any_text", "excludes": list(written.kept_out)}
        self._definitions = definitions
        self._definitions_length = len(json.dumps(definitions))

    def of(self, schema: Schema, *, declared: bool) -> Form:
        """`declared`: whether a parser sees this schema, and not one that leads to it."""
        reference = schema.get("$ref")
        if reference is not None:
            return self.of(self._definitions.get(reference.removeprefix("#/$defs/"), {}), declared=False)
        if "enum" in schema:
            return self._ended([either(self._texts(schema, declared=declared))])
        if "anyOf" in schema:
            return either([self.of(choice, declared=False) for choice in schema["anyOf"]])
        kinds = schema.get("type", [])
        if not kinds or (kinds == "string" and declared):
            return self._ended([self._text])
        if isinstance(kinds, list):
            return either([self.of({**schema, "type": kind}, declared=False) for kind in kinds])
        value = self._ended([json_value({**schema, **self._defined(schema)})])
        return either([self._no_json(), value]) if kinds == "string" else value

    def _no_json(self) -> Form:
        return self._ended([{"type": "regex", "pattern": _NO_JSON}, self._text])

    def _texts(self, schema: Schema, *, declared: bool) -> list[Form]:
        verbatim = declared and schema.get("type") == "string"
        self._take(len(json.dumps(schema)))
        texts = [
            value if isinstance(value, str) and (verbatim or not _is_json(value)) else json.dumps(value)
            for value in schema["enum"]
        ]
        return [text(each) for each in dict.fromkeys(texts)]

    def _defined(self, schema: Schema) -> Schema:
        written = json.dumps(schema)
        refers = bool(self._definitions) and '"$ref"' in written
        self._take(len(written) + (self._definitions_length if refers else 0))
        return {"$defs": self._definitions} if refers else {}

    def _ended(self, forms: Sequence[Form]) -> Form:
        self._take(_FORM)
        return sequence([*forms, self._end])

    def _take(self, letters: int) -> None:
        self._room -= letters
        if self._room < 0:
            raise TooLong


def _is_json(value: str) -> bool:
    """Whether a parser may read it as JSON; also what is nested too deeply for it to come to an end."""
    try:
        json.loads(value)
    except RecursionError:
        return True
    except ValueError:
        return False
    return True
