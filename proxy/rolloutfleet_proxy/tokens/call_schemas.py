"""A tool's parameters as a schema that every grammar can be made of: what it allows is never less than was declared,
but for undeclared properties, which are left out where none are asked for. Pure.

An engine refuses a grammar that it can't compile, and no agent can help the schemas of its tools. So only what all
compile is kept: types, properties, items, enumerations and alternatives. References are replaced by what they lead to;
a schema within itself allows everything the second time. Lengths, ranges, patterns and formats are dropped, as are
titles and descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from rolloutfleet_proxy.tokens.schemas import TYPES, Schema, given, merged, parts_of

ANY_OBJECT: Final[Schema] = {"type": "object"}
LONGEST: Final = 256 << 10
"""Letters of all schemas of a grammar: those of names and of listed values, and `EACH` for every schema."""
EACH: Final = 128
"""Letters that a schema counts, references followed; a listed value counts a quarter. Where arguments are written one
by one, more than these would hold the event loop for over 50 ms."""
_MOST_LEVELS: Final = 64
"""Schemas within each other, references followed."""


def arguments_schemas(tools: Sequence[Mapping[str, Any] | None]) -> list[Schema]:
    """The schemas of the tools' arguments, which are always objects. One that is too large for the grammar, or for what
    those before it have left, is that of any object."""
    room = LONGEST
    schemas: list[Schema] = []
    for parameters in tools:
        relaxing = _Relaxing(parameters or {}, room=room)
        schema = relaxing.arguments()
        # A NUL ends the process of an engine that compiles it (SGLang refuses it for that).
        if relaxing.room < 0 or "\\u0000" in json.dumps(schema):
            schema = ANY_OBJECT
        else:
            room = relaxing.room
        schemas.append(schema)
    return schemas


class _Relaxing:
    """One tool's schemas. Once no room is left, what comes of them is of no use."""

    def __init__(self, root: Mapping[str, Any], *, room: int) -> None:
        self.room = room
        self._root = dict(root)

    def arguments(self) -> Schema:
        return {"type": "object", **self._object(merged(self._root, self._root), ())}

    def _relaxed(self, schema: Any, outer: tuple[int, ...]) -> Schema:
        """`outer` has the ids of the schemas that this one is within."""
        self.room -= EACH
        parts = parts_of(schema, self._root)
        if not parts or self.room < 0 or len(outer) > _MOST_LEVELS or any(id(part) in outer for part in parts):
            return {}
        within = (*outer, *map(id, parts))
        form = merged(schema, self._root) if len(parts) > 1 else parts[0]
        is_string = form.get("type") in ("string", ["string"])
        values = [form["const"]] if "const" in form else given(form, "enum", list)
        if values:
            self.room -= len(json.dumps(values)) + len(values) * EACH // 4
            strings = [value for value in values if isinstance(value, str)] if is_string else []
            return {"enum": strings or values}
        if is_string:
            return {"type": "string"}
        choices = given(form, "anyOf", list) or given(form, "oneOf", list)
        if choices:
            return {"anyOf": [self._relaxed(choice, within) for choice in choices]}
        return {} if "allOf" in form else self._typed(form, within)

    def _typed(self, form: Schema, within: tuple[int, ...]) -> Schema:
        declared: Any = form.get("type", "object" if "properties" in form else None)
        kinds = declared if isinstance(declared, list) else [declared]
        if not kinds or any(kind not in TYPES for kind in kinds):
            return {}
        self.room -= EACH * (len(kinds) - 1)
        choices = [self._of_kind(kind, form, within) for kind in kinds]
        return {"anyOf": choices} if len(choices) > 1 else choices[0]

    def _of_kind(self, kind: str, form: Schema, within: tuple[int, ...]) -> Schema:
        if kind == "object":
            return {"type": kind, **self._object(form, within)}
        if kind == "array" and isinstance(form.get("items"), dict):
            return {"type": kind, "items": self._relaxed(form["items"], within)}
        return {"type": kind}

    def _object(self, form: Schema, within: tuple[int, ...]) -> Schema:
        others: Any = True if "patternProperties" in form else form.get("additionalProperties")
        if isinstance(others, dict):
            others = self._relaxed(others, within)
        properties = form.get("properties")
        if not isinstance(properties, dict):
            return {"additionalProperties": others} if isinstance(others, dict) else {}
        required = {name for name in given(form, "required", list) if isinstance(name, str)}
        self.room -= sum(map(len, properties))
        return {
            "properties": {name: self._relaxed(value, within) for name, value in properties.items()},
            "required": [name for name in properties if name in required],
            "additionalProperties": others if isinstance(others, dict) else others is True,
        }
