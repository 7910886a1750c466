"""A tool's parameters as a schema that every grammar can be made of: what it allows is never less than was declared,
but for undeclared properties, which are left out where none are asked for. Pure.

An engine refuses a grammar that it can't compile, and no agent can help the schemas of its tools. So only what all
compile is kept: types, properties, items, enumerations, alternatives, and references to `$defs`. Lengths, ranges,
patterns and formats are dropped, as are titles and descriptions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

Schema = dict[str, Any]

ANY_OBJECT: Final[Schema] = {"type": "object"}
LONGEST: Final = 256 << 10
"""Letters of all schemas of a grammar, definitions counted three times for each argument that refers to one."""
MOST_PARTS: Final = 2_000
"""Schemas within all schemas of a grammar; each type of several counts, and each four values of an enumeration. Where
arguments are written one by one, more would hold the event loop for over 50 ms."""

_TYPES = frozenset({"string", "number", "integer", "boolean", "object", "array", "null"})
_WRITTEN = 3
"""Letters of a form for one of a schema that it is made of."""
_SPARE = 1_000
"""Letters that even an empty schema may come to."""
_DEFINITIONS = ("$defs", "definitions")


class _TooLarge(Exception):
    """There is no room for what is left of a schema."""


def arguments_schemas(tools: Sequence[Mapping[str, Any] | None]) -> list[Schema]:
    """The schemas of the tools' arguments, which are always objects. One that is too large for the grammar, or for what
    those before it have left, is that of any object."""
    letters, parts = LONGEST, MOST_PARTS
    schemas: list[Schema] = []
    for parameters in tools:
        try:
            relaxing = _Relaxing(parameters or {}, room=parts)
            schema = relaxing.root()
        except _TooLarge:
            schema = ANY_OBJECT
        else:
            parts = relaxing.room
        written = json.dumps(schema)
        # A NUL ends the process of an engine that compiles it (SGLang refuses it for that).
        length = len(written) + _repeated(schema)
        if length > letters or "\\u0000" in written:
            schema = ANY_OBJECT
        else:
            letters -= length
        schemas.append(schema)
    return schemas


def _repeated(schema: Schema) -> int:
    """Letters that definitions may take where each argument that refers to one is written by itself."""
    if "$defs" not in schema:
        return 0
    referring = sum('"$ref"' in json.dumps(value) for value in schema.get("properties", {}).values())
    return referring * _WRITTEN * len(json.dumps(schema["$defs"]))


def most_written(schema: Schema) -> int:
    """Letters that the forms of a schema's arguments may come to where each is written by itself. Its references and
    alternatives multiply: without a bound, 15 KB of them are hundreds of MB."""
    return _WRITTEN * len(json.dumps(schema)) + _repeated(schema) + _SPARE


def _is_string(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", ["string"])


def _enumeration(values: list[Any], *, strings: bool) -> Schema:
    """Of those that are declared as strings only strings can come."""
    kept = [value for value in values if isinstance(value, str)] if strings else []
    return {"enum": kept or values}


class _Relaxing:
    def __init__(self, root: Mapping[str, Any], *, room: int) -> None:
        self.room = room
        self._root = root
        self._definitions: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        """Of definitions, by the references to them."""
        for key in _DEFINITIONS:
            found: Any = root.get(key)
            for name in found if isinstance(found, dict) else ():
                if "/" not in name and "~" not in name and "%" not in name:
                    self._definitions[name] = found[name]
                    self._names[f"#/{key}/{name}"] = name

    def root(self) -> Schema:
        root = self._root
        if "properties" not in root:
            root = self._definitions.get(self._names.get(str(root.get("$ref")), ""), root)
        schema = {"type": "object", **(self._object(root) if isinstance(root, dict) else {})}
        if schema == ANY_OBJECT:
            return schema
        definitions = {name: self.relaxed(each, direct=True) for name, each in self._definitions.items()}
        return schema | ({"$defs": definitions} if definitions else {})

    def relaxed(self, schema: Any, *, direct: bool = False) -> Schema:
        """`direct`: what a definition is at once, where a reference could lead round in a circle."""
        self._take(1)
        if not isinstance(schema, dict):
            return {}
        reference = schema.get("$ref")
        if reference is not None and not _is_string(schema):
            name = None if direct else self._names.get(reference) if isinstance(reference, str) else None
            return {} if name is None else {"$ref": f"#/$defs/{name}"}
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(values, list) and values:
            self._take(len(values) // 4)
            return _enumeration(values, strings=_is_string(schema))
        if _is_string(schema):
            return {"type": "string"}
        choices = schema.get("anyOf", schema.get("oneOf"))
        if isinstance(choices, list) and choices:
            return {"anyOf": [self.relaxed(choice, direct=direct) for choice in choices]}
        if "allOf" in schema:
            return self._joined(schema, direct=direct)
        return self._typed(schema)

    def _joined(self, schema: Mapping[str, Any], *, direct: bool) -> Schema:
        """The one schema of `allOf` that says something; of several each may leave out what another declares."""
        parts = schema["allOf"] if isinstance(schema["allOf"], list) and "properties" not in schema else []
        said = [each for each in (self.relaxed(part, direct=direct) for part in parts) if each]
        return said[0] if len(said) == 1 else {}

    def _take(self, parts: int) -> None:
        self.room -= parts
        if self.room < 0:
            raise _TooLarge

    def _typed(self, schema: Mapping[str, Any]) -> Schema:
        given = schema.get("type", "object" if isinstance(schema.get("properties"), dict) else None)
        types = [given] if isinstance(given, str) else given
        if not isinstance(types, list) or not types or any(kind not in _TYPES for kind in types):
            return {}
        self._take(len(types) - 1)
        relaxed: Schema = {"type": types[0] if len(types) == 1 else types}
        if "object" in types:
            relaxed |= self._object(schema)
        if "array" in types and isinstance(schema.get("items"), dict):
            relaxed["items"] = self.relaxed(schema["items"])
        return relaxed

    def _object(self, schema: Mapping[str, Any]) -> Schema:
        properties = schema.get("properties")
        others: Any = True if "patternProperties" in schema else schema.get("additionalProperties")
        if isinstance(others, dict):
            others = self.relaxed(others)
        if not isinstance(properties, dict):
            return {"additionalProperties": others} if isinstance(others, dict) else {}
        listed = schema.get("required")
        required = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else frozenset()
        return {
            "properties": {name: self.relaxed(value) for name, value in properties.items()},
            "required": [name for name in properties if name in required],
            "additionalProperties": others if isinstance(others, dict) else others is True,
        }
