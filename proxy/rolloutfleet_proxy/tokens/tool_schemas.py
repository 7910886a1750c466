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

from rolloutfleet_proxy.tokens.schemas import NOTES, Schema, given, merged, referred, without_nulls

_KINDS: Final = frozenset({"type", "enum", "anyOf", "$ref"})
"""By which Kimi K2.5's declarations tell what a value is; one without any is refused."""
_TYPELESS: Final = {"properties": "object", "additionalProperties": "object", "required": "object", "items": "array"}
"""The type of a schema that names none, by its first keyword of these."""
_UNREAD: Final = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")
"""Of parameters without properties, what says which they are."""


def writable(name: str, tools: Sequence[Any]) -> list[Any]:
    """The tools, as the chat format of that name can write them."""
    written = _WRITTEN.get(name)
    if written is None:
        return list(tools)
    return [{**tool, "function": _function(tool["function"], written)} for tool in tools]


def _function(function: Schema, written: Callable[[Schema], Schema]) -> Schema:
    form = without_nulls(function)
    parameters = form.get("parameters")
    if not isinstance(parameters, dict):
        return form
    form["parameters"] = written(parameters)
    unread = () if form["parameters"].get("properties") else _UNREAD
    return _with_note(form, {key: parameters[key] for key in unread if key in parameters})


def _with_note(form: Schema, note: Mapping[str, Any]) -> Schema:
    """With what can't be said otherwise in its description."""
    if not note:
        return form
    said = form.get("description")
    text = json.dumps(note, ensure_ascii=False)
    return {**form, "description": f"{said}\n{text}" if said else text}


def _rooted(parameters: Schema) -> Schema:
    """For formats that read the fields of `properties` at the root alone: with those that stand behind references."""
    form = merged(parameters, parameters)
    if not isinstance(form.get("properties"), dict):
        return form
    properties = {name: _fields(each) for name, each in form["properties"].items()}
    return {"type": "object", **form, "properties": properties}


def _fields(schema: Any) -> Schema:
    if isinstance(schema, dict):
        return without_nulls(schema)
    return {"not": {}} if schema is False else {}


class _Typed:
    """One function's schemas in the types that Kimi K2.5's declarations know."""

    def __init__(self, parameters: Schema) -> None:
        self._root = parameters
        self._definitions = [*given(parameters, "$defs", dict).items()]
        """Those of the root, and what other references lead to."""
        self._references = {each: each for each in ("#", *(f"#/$defs/{name}" for name, _ in self._definitions))}
        """References to these, by those that were declared."""

    @classmethod
    def parameters(cls, parameters: Schema) -> Schema:
        typed = cls(parameters)
        form = typed._inside(_rooted(parameters))
        definitions = {name: typed._of(each) for name, each in typed._definitions}  # which grow meanwhile
        return {**form, "$defs": definitions} if definitions else form

    def _of(self, schema: Any) -> Schema:
        form, note = _fields(schema), dict[str, Any]()
        form.pop("$defs", None)  # only those of the root are written
        if not form.keys() & _KINDS:
            form = merged(form)
            if "const" in form:
                form["enum"] = [form.pop("const")]
            if "oneOf" in form:
                form["anyOf"] = form.pop("oneOf")
        if "$ref" in form:
            form["$ref"] = self._reference(form["$ref"])
        if "anyOf" in form and form.keys() & {"type", "properties"}:
            note["anyOf"] = form.pop("anyOf")  # it says more of what is said beside it
        if form and not form.keys() & _KINDS:
            kind = next((kind for key, kind in _TYPELESS.items() if key in form), "any")
            shown = {key: value for key, value in form.items() if key in NOTES | _TYPELESS.keys()}
            note |= {key: value for key, value in form.items() if key not in shown}
            form = {"type": kind, **shown}
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
        if "anyOf" in form:
            form["anyOf"] = [self._of(each) for each in given(form, "anyOf", list)]
        return form

    def _reference(self, reference: str) -> str:
        """To a definition, which is added where it stands elsewhere, or is unknown."""
        if reference not in self._references:
            name = re.sub(r"\W", "_", reference.rpartition("/")[2])
            while f"#/$defs/{name}" in self._references.values():
                name += "_"
            self._references[reference] = f"#/$defs/{name}"
            target = referred(self._root, reference)
            self._definitions.append((name, {"description": reference} if target is None else target))
        return self._references[reference]


_WRITTEN: Final[Mapping[str, Callable[[Schema], Schema]]] = {
    "kimi-k2.5": _Typed.parameters,
    **dict.fromkeys(("gpt-oss", "gemma4", "nemotron-3", "nemotron-3-ultra", "nemotron-3.5"), _rooted),
}
