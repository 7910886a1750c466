"""JSON schemas (https://json-schema.org/draft/2020-12) in plainer words: references followed, and `allOf` joined. Pure.

References are JSON pointers (RFC 6901) into one root, the whole of a tool's `parameters`.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, Final, TypeVar
from urllib.parse import unquote

Schema = dict[str, Any]
T = TypeVar("T", list[Any], dict[str, Any])

TYPES: Final = ("string", "number", "integer", "boolean", "object", "array", "null")
NOTES: Final = frozenset({"description", "title", "default", "examples", "$schema", "$defs", "definitions"})
"""Keywords that say nothing of which values are allowed."""
_VALUES: Final = frozenset({"const", "default"})
"""Keywords whose null is a value."""
_MOST_PARTS: Final = 200
"""Parts of one schema; others are left out."""


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
    return {key: value for key, value in schema.items() if value is not None or key in _VALUES}


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
