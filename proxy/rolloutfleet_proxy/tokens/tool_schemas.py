"""Schemas of tools' parameters (https://json-schema.org/draft/2020-12): in plainer words, as grammars of calls take
them, and as chat formats write them. Pure.

In plainer words references are followed, and `allOf` is joined (`merged`). References are JSON pointers (RFC 6901) into
one root, the whole of a tool's `parameters`.

A schema for a grammar (`arguments_schemas`) never allows less than was declared, but for undeclared properties, which
are left out where none are asked for. An engine refuses a grammar that it can't compile, and no agent can help the
schemas of its tools. So only what all compile is kept: types, properties, items, enumerations and alternatives.
References are replaced by what they lead to; a schema within itself allows everything the second time. Lengths, ranges,
patterns and formats are dropped, as are titles and descriptions.

A format may refuse what JSON Schema allows, or lose some of it (`writable`). Most formats write a tool as JSON, and get
it as it came. Kimi K2.5 writes TypeScript, Nemotron 3 and Gemma 4 the fields of each property, gpt-oss both: they are
given the same schema in words that they know, with as little changed as possible. What there are no such words for
stands in a description, as JSON, and definitions to which that refers in the function's.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import unquote

Schema = dict[str, Any]
T = TypeVar("T", list[Any], dict[str, Any])

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
NOTES: Final = frozenset({"description", "title", "default", "examples", "$schema", "$defs", "definitions"})
"""Keywords that say nothing of which values are allowed."""
_MOST_PARTS: Final = 200
"""Parts of one schema; others are left out."""
ANY_OBJECT: Final[Schema] = {"type": "object"}
LONGEST: Final = 256 << 10
"""Letters of all schemas of a grammar: those of names and of listed values, and `EACH` for every schema."""
EACH: Final = 128
"""Letters that a schema counts, references followed; a listed value counts a quarter. Where arguments are written one
by one, more than these would hold the event loop for over 50 ms."""
_MOST_LEVELS: Final = 64
"""Schemas within each other, references followed."""
_KINDS: Final = frozenset({"type", "enum", "anyOf", "$ref"})
"""By which Kimi K2.5's declarations tell what a value is; one without any is refused."""
_TYPELESS: Final = {"properties": "object", "additionalProperties": "object", "required": "object", "items": "array"}
"""The type of a schema that names none, by its first keyword of these."""
_MOST_FOLLOWED: Final = 16
"""Levels of a schema down to which references are followed: gpt-oss' library reads no more than some sixty."""
_UNTOLD: Final = ("title", "$schema", "$id", "$comment")
"""What is left out where a format has no word for it."""
_UNREAD: Final = ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")
"""Of parameters without properties, what says which they are."""
_NUMBERS: Final = dict.fromkeys(("number", "integer"), "minimum maximum")
_PLACES: Final = {"string": "enum", "array": "items", "object": "properties required"}
_WORDS: Final[Mapping[str, Mapping[str, str]]] = {
    "gpt-oss": {"": "type description nullable title examples default", **_PLACES},
    "gemma4": {"": "type description nullable", **_PLACES},
    "kimi-k2.5": {
        "": "type description default enum anyOf $ref",
        "string": "pattern minLength maxLength",
        "array": "items minItems maxItems",
        "object": "properties required additionalProperties",
        **_NUMBERS,
    },
}
"""What a format writes of every schema, and of one of a type."""
_HIDING: Final = {"gpt-oss": ("items",), "kimi-k2.5": ("anyOf", "additionalProperties")}
"""Keywords of whose schemas a format writes no more than `_KINDS` and `_TYPELESS`."""


def parts_of(schema: Any, root: Any = None) -> list[Schema]:
    """What a value has to suit all at once: a schema, and what its `allOf` and, with a root, its `$ref` lead to."""
    parts: dict[int, Schema] = {}
    found = [schema]
    for part in islice(found, _MOST_PARTS):  # which grows meanwhile
        if isinstance(part, dict) and id(part) not in parts:
            parts[id(part)] = part
            found += given(part, "allOf", list)
            if root is not None and "$ref" in part:
                found.append(referred(root, part["$ref"]))
    return list(parts.values())


def merged(schema: Schema, root: Any = None) -> Schema:
    """A schema's parts as one, without nulls; the schema alone where they contradict each other."""
    whole = Schema()
    for part in parts_of(schema, root):
        for key, value in without_nulls(part).items():
            if key == "allOf" or (key == "$ref" and root is not None):
                continue
            if key == "properties" and isinstance(value, dict):
                whole[key] = given(part, key, dict) | given(whole, key, dict)
            elif key == "required":
                whole[key] = given(whole, key, list) + given(part, key, list)
            elif whole.setdefault(key, value) != value and key not in NOTES:
                return without_nulls(schema)
    return whole


def without_nulls(schema: Schema) -> Schema:
    """The schema without keywords that are null, where that is no value."""
    return {key: value for key, value in schema.items() if value is not None or key in ("const", "default")}


def referred(root: Any, reference: Any) -> Any:
    """What a reference leads to; None where that is nothing."""
    if not isinstance(reference, str) or reference[:2] not in ("#", "#/"):
        return None
    found = root
    for step in unquote(reference).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        try:
            found = found[int(name)] if isinstance(found, list) else found[name]
        except (LookupError, TypeError, ValueError):
            return None
    return found


def given(schema: Schema, key: str, kind: type[T]) -> T:
    """The list or object under a keyword; an empty one where it is none."""
    value = schema.get(key)
    return value if isinstance(value, kind) else kind()


def arguments_schemas(tools: Sequence[Mapping[str, Any] | None]) -> list[Schema]:
    """The schemas of the tools' arguments, which are always objects. One that is too large for the grammar, or for what
    those before it have left, is that of any object."""
    room = LONGEST
    schemas: list[Schema] = []
    for parameters in tools:
        relaxing = _Relaxing(parameters or {}, room=room)
        schema = relaxing.arguments()
        # A NUL ends the process of an engine that compiles it (SGLang refuses it for that).
        fits = relaxing.room >= 0 and "\\u0000" not in json.dumps(schema)
        room = relaxing.room if fits else room
        schemas.append(schema if fits else ANY_OBJECT)
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
        if form.get("nullable") is True:
            return {"anyOf": [self._relaxed({**form, "nullable": False}, within), {"type": "null"}]}
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
        choices = [{"type": kind, **self._inner(kind, form, within)} for kind in kinds]
        return {"anyOf": choices} if len(choices) > 1 else choices[0]

    def _inner(self, kind: str, form: Schema, within: tuple[int, ...]) -> Schema:
        if kind == "array" and isinstance(form.get("items"), dict):
            return {"items": self._relaxed(form["items"], within)}
        return self._object(form, within) if kind == "object" else {}

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


def writable(name: str, tools: Sequence[Any]) -> list[Any]:
    """The tools, as the chat format of that name can write them."""
    if name not in _WORDS and not name.startswith("nemotron-"):
        return list(tools)
    return [{**tool, "function": _function(tool["function"], name)} for tool in tools]


def _function(function: Schema, name: str) -> Schema:
    form = without_nulls(function)
    parameters = form.get("parameters")
    if not isinstance(parameters, dict):
        return form
    rooted = form["parameters"] = _rooted(parameters)
    note = {} if rooted.get("properties") else {key: parameters[key] for key in _UNREAD if key in parameters}
    if name in _WORDS:
        form["parameters"], note = _Told(parameters, name).root(rooted)
    return _with_note(form, note)


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
    return without_nulls(schema) if isinstance(schema, dict) else {"not": {}} if schema is False else {}


def _says(key: str, value: Any) -> bool:
    is_usual = key in _UNTOLD or (key == "additionalProperties" and isinstance(value, bool))
    return not is_usual and (key, value) != ("default", None)


class _Told:
    """One function's schemas in the words of a format. What a reference leads to stands in its place the first time."""

    def __init__(self, parameters: Schema, name: str) -> None:
        self._root = parameters
        self._words, self._hiding = _WORDS[name], _HIDING.get(name, ())
        self._has_unions = "anyOf" in self._words[""]
        definitions = given(parameters, "$defs", dict) if self._has_unions else ()
        self._written = {"#", *(f"#/$defs/{each}" for each in definitions)} if self._has_unions else set[str]()
        """References that the format writes."""
        self._seen = {id(parameters): parameters}

    def root(self, form: Schema) -> tuple[Schema, Schema]:
        """What is written of the parameters, and what of the function."""
        form, note = self._of({"type": "object", **form})
        refers = '"$ref"' in f"{form}{json.dumps(note)}"  # of the form's, only what stands in a description
        defined = {key: note.pop(key) for key in ("$defs", "definitions") if key in note}
        if self._has_unions and "$defs" in defined:
            form["$defs"] = {name: _with_note(*self._of(each)) for name, each in defined.pop("$defs").items()}
        return form, note | (defined if refers else {})

    def _of(self, schema: Any, level: int = 0) -> tuple[Schema, Schema]:
        """A schema in these words, and what there are none for."""
        form = self._resolved(schema, level)
        choices = [each for each in given(form, "anyOf", list) if each != {"type": "null"}]
        if len(choices) == 1 < len(form["anyOf"]) and not self._has_unions:
            del form["anyOf"]
            return self._of({**form, "nullable": True, "allOf": [*given(form, "allOf", list), *choices]}, level + 1)
        note = Schema()
        if "$ref" in form and str(form["$ref"]) not in self._written:
            note["$ref"] = form.pop("$ref")
        if (form or note) and not form.keys() & _KINDS:
            form["type"] = next((kind for key, kind in _TYPELESS.items() if key in form), "any")
        known = f"{self._words['']} {self._words.get(str(form.get('type')), '')}".split()
        note |= {key: value for key, value in form.items() if key not in known and _says(key, value)}
        form = {key: value for key, value in form.items() if key in known}
        if "anyOf" in form and "type" in form:
            note["anyOf"] = form.pop("anyOf")
        if isinstance(properties := form.get("properties"), dict):
            form["properties"] = {name: _with_note(*self._of(each, level + 1)) for name, each in properties.items()}
        if isinstance(form.get("items"), list):
            form["items"] = {"anyOf": form["items"]}
        for key in ("items", "additionalProperties", "anyOf"):
            inner = form.get(key)
            schemas = inner if isinstance(inner, list) else [inner] if isinstance(inner, dict) else []
            told = [self._of(each, level + 1) for each in schemas]
            if any(rest or (key in self._hiding and each.keys() - _KINDS - _TYPELESS.keys()) for each, rest in told):
                note[key] = inner
            if told:
                form[key] = [each for each, _ in told] if isinstance(inner, list) else told[0][0]
        return form, note

    def _resolved(self, schema: Any, level: int) -> Schema:
        """With what its references and parts lead to, `const` as `enum`, and, where there is a word for it, `oneOf` as
        `anyOf`."""
        form = _fields(schema)
        parts = {id(part): part for part in parts_of(form, self._root)}
        is_new = level < _MOST_FOLLOWED and parts.keys().isdisjoint(self._seen)
        leads = "$ref" not in form or isinstance(referred(self._root, form["$ref"]), dict)
        if is_new and leads and str(form.get("$ref")) not in self._written:
            form = merged(form, self._root)
            self._seen |= parts
        if "const" in form and "enum" not in form:
            form["enum"] = [form.pop("const")]
        if self._has_unions and "oneOf" in form and not form.keys() & _KINDS:
            form["anyOf"] = form.pop("oneOf")
        return form
