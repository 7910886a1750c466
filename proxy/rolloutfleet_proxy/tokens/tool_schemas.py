"""Tools in the form that a chat format can write, where it would refuse what JSON Schema allows, or lose all of it.

Most formats write a tool as JSON, and get it as it came. Kimi K2.5 writes TypeScript, Nemotron 3 and Gemma 4 the fields
of each property, gpt-oss both: they are given the same schema in words that they know, with as little changed as
possible. What there are no such words for stands in a description, as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote

Schema = dict[str, Any]

_KINDS: Final = frozenset({"type", "enum", "anyOf", "$ref"})
"""By which Kimi K2.5's declarations tell what a value is; one without any is refused."""
_NOTES: Final = frozenset(
    {"description", "title", "default", "examples", "$comment", "$schema", "$id", "$defs", "definitions"}
)
_SHOWN: Final[Mapping[str, frozenset[str]]] = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "any": frozenset(),
}
_VALUES: Final = frozenset({"const", "default"})
"""Keywords whose null is a value."""
_UNREAD: Final = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")
"""Of parameters without properties, what says which they are."""


def writable(name: str, tools: Sequence[Any]) -> list[Any]:
    """The tools, as the chat format of that name can write them."""
    written = _WRITTEN.get(name)
    if written is None:
        return list(tools)
    return [{**tool, "function": _function(tool["function"], written)} for tool in tools]


def _function(function: Schema, written: Callable[[Schema], Schema]) -> Schema:
    form = {key: value for key, value in function.items() if value is not None or key != "description"}
    if not isinstance(form.get("parameters"), dict):
        return form
    parameters = written(form["parameters"])
    if written is not _of_properties and not parameters.get("properties"):
        form = _with_note(form, {key: parameters[key] for key in _UNREAD if key in parameters})
    return {**form, "parameters": parameters}


def _with_note(form: Schema, note: Mapping[str, Any]) -> Schema:
    """With what can't be said otherwise in its description."""
    if not note:
        return form
    said = form.get("description")
    text = json.dumps(note, ensure_ascii=False)
    return {**form, "description": f"{said}\n{text}" if said else text}


def _of_properties(parameters: Schema) -> Schema:
    """For formats that read the fields of each property: each is an object without nulls."""
    properties = {name: _fields(each) for name, each in (parameters.get("properties") or {}).items()}
    return {**_without_nulls(parameters), **({"properties": properties} if "properties" in parameters else {})}


def _fields(schema: Any) -> Any:
    if isinstance(schema, dict):
        return _without_nulls(schema)
    return {"not": {}} if schema is False else {} if schema in (True, None) else schema


def _without_nulls(schema: Schema) -> Schema:
    return {key: value for key, value in schema.items() if value is not None or key in _VALUES}


def _rooted(parameters: Schema) -> Schema:
    """For formats that look for `properties` at the root alone: with those that stand behind references there."""
    form, seen = _without_nulls(parameters), list[Any]()
    while "$ref" in form and form["$ref"] not in seen:
        seen.append(form["$ref"])
        target = _target(parameters, form["$ref"])
        if not isinstance(target, dict):
            break
        form = _without_nulls({**target, **{key: value for key, value in form.items() if key != "$ref"}})
    if isinstance(form.get("allOf"), list):
        parts = [
            _target(parameters, part["$ref"]) if isinstance(part, dict) and part.keys() == {"$ref"} else part
            for part in form["allOf"]
        ]
        form = _merged(form, parts)
    return {"type": "object", **form} if "properties" in form else form


def _merged(schema: Schema, parts: Sequence[Any]) -> Schema:
    """A schema with the parts of its `allOf` in it; as it is where they contradict each other."""
    merged = {key: value for key, value in schema.items() if key != "allOf"}
    for part in parts:
        if not isinstance(part, dict):
            return schema
        for key, value in part.items():
            if key == "properties" and isinstance(value, dict):
                merged[key] = {**value, **merged.get(key, {})}
            elif key == "required" and isinstance(value, list):
                merged[key] = [*merged.get(key, []), *value]
            elif merged.setdefault(key, value) != value and key not in _NOTES:
                return schema
    return merged


def _target(root: Schema, reference: Any) -> Any:
    """What a reference within a schema points to (RFC 6901); None where there is nothing, or it leads elsewhere."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    found: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, list):
            found = found[int(name)] if name.isdecimal() and int(name) < len(found) else None
        else:
            found = found.get(name) if isinstance(found, dict) else None
    return found if reference in ("#", "") or "/" in reference else None


class _Typed:
    """One function's schemas in the types that Kimi K2.5's declarations know."""

    def __init__(self, parameters: Schema) -> None:
        self._root = parameters
        self._named: dict[str, str] = {}
        self._moved: list[tuple[str, Any]] = []
        """Definitions that stand elsewhere than in `$defs`, by the names in `_named`."""

    @classmethod
    def parameters(cls, parameters: Schema) -> Schema:
        typed, root = cls(parameters), _rooted(parameters)
        form = typed._inside(root)
        definitions = {name: typed._defined(each) for name, each in (parameters.get("$defs") or {}).items()}
        for name, each in typed._moved:  # which grows meanwhile
            definitions[name] = typed._defined(each)
        return {**form, "$defs": definitions} if definitions else form

    def _of(self, schema: Any) -> Any:
        if not isinstance(schema, dict):
            return {} if schema is None else schema
        form, note = _without_nulls(schema), dict[str, Any]()
        form.pop("$defs", None)  # only those of the root are written
        if not form.keys() & _KINDS:
            if isinstance(form.get("allOf"), list):
                form = _merged(form, form["allOf"])
            if "const" in form:
                form["enum"] = [form.pop("const")]
            if "oneOf" in form:
                form["anyOf"] = form.pop("oneOf")
        if "$ref" in form:
            reference = self._reference(form["$ref"])
            (note if reference is None else form)["$ref"] = form.pop("$ref") if reference is None else reference
        if "anyOf" in form and form.keys() & {"type", "properties"} and not all(map(_says_kind, form["anyOf"])):
            note["anyOf"] = form.pop("anyOf")  # it says more of what is said beside it
        if not form.keys() & _KINDS and (form or note):
            kind = next((kind for kind, words in _SHOWN.items() if form.keys() & words), "any")
            shown = _NOTES | _SHOWN[kind]
            note |= {key: value for key, value in form.items() if key not in shown}
            form = {"type": kind, **{key: value for key, value in form.items() if key in shown}}
        return self._inside(_with_note(form, note))

    def _inside(self, form: Schema) -> Schema:
        """With what it is made of in these types, too."""
        form = dict(form)
        if isinstance(form.get("properties"), dict):
            form["properties"] = {name: self._of(each) for name, each in form["properties"].items()}
        if isinstance(form.get("items"), list):
            form["items"] = {"anyOf": form["items"]}
        for key in ("items", "additionalProperties"):
            if isinstance(form.get(key), dict):
                form[key] = self._of(form[key])
        if isinstance(form.get("anyOf"), list):
            form["anyOf"] = [self._of(each) for each in form["anyOf"]]
        return form

    def _defined(self, schema: Any) -> Any:
        return {"type": "any" if schema else "never"} if isinstance(schema, bool) else self._of(schema)

    def _reference(self, reference: Any) -> str | None:
        """To a definition, which is added where it stands elsewhere; None where there is none."""
        target = _target(self._root, reference)
        if target is None:
            return None
        head, _, name = reference.rpartition("/")
        if reference == "#" or (head == "#/$defs" and name in self._root["$defs"]):
            return str(reference)
        if reference not in self._named:
            taken = {*(self._root.get("$defs") or {}), *self._named.values()}
            name = re.sub(r"\W", "_", name)
            while name in taken:
                name += "_"
            self._named[reference] = name
            self._moved.append((name, target))
        return f"#/$defs/{self._named[reference]}"


def _says_kind(schema: Any) -> bool:
    return not isinstance(schema, dict) or bool(schema.keys() & (_KINDS | {"const", "oneOf", "allOf"}))


_WRITTEN: Final[Mapping[str, Callable[[Schema], Schema]]] = {
    "kimi-k2.5": _Typed.parameters,
    "gpt-oss": _rooted,
    "gemma4": _rooted,
    **dict.fromkeys(("nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _of_properties),
}
