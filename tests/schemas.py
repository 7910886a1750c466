"""What an OpenAPI document says of answers, held against answers. Stricter than its words: no field goes undeclared."""

import re
from collections.abc import Iterator
from typing import Any

import httpx

TYPES: dict[str, type | tuple[type, ...]] = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
}


def operation_of(document: dict[str, Any], method: str, path: str) -> dict[str, Any]:
    """What the document says of this call. Raises LookupError where it doesn't have it."""
    for template, operations in sorted(document["paths"].items()):
        pattern = re.sub(r"\\{\w+\\}", "[^/]+", re.escape(template))
        if re.fullmatch(pattern, path) and method.lower() in operations:
            found: dict[str, Any] = operations[method.lower()]
            return found
    raise LookupError(f"{method} {path} is not in the document")


def wrongs(document: dict[str, Any], answer: httpx.Response) -> list[str]:
    """What of an answer is not as the document has it."""
    request = answer.request
    replies = operation_of(document, request.method, request.url.path)["responses"]
    reply = replies.get(str(answer.status_code)) or (replies["default"] if answer.status_code >= 400 else None)
    if reply is None:
        return [f"{answer.status_code} is not declared"]
    if "content" not in reply:
        return [] if not answer.content else ["a body is not declared"]
    media = answer.headers["content-type"].split(";")[0]
    if media not in reply["content"]:
        return [f"{media} is not declared"]
    schema = reply["content"][media].get("schema", {})
    return list(_wrongs(document, schema, answer.json(), "")) if media == "application/json" else []


def _wrongs(document: dict[str, Any], schema: dict[str, Any], value: Any, at: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        choices = [list(_wrongs(document, choice, value, at)) for choice in schema["anyOf"]]
        yield from min(choices, key=len)
        return
    kind = schema.get("type")
    if kind is not None and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{at or 'the body'} is no {kind}: {value!r:.60}"
    elif "enum" in schema and value not in schema["enum"]:
        yield f"{at} is none of {schema['enum']}: {value!r}"
    elif isinstance(value, dict):
        properties, further = schema.get("properties", {}), schema.get("additionalProperties", not schema.get("type"))
        yield from (f"{at}.{name} is missing" for name in schema.get("required", ()) if name not in value)
        for name, each in value.items():
            if name in properties:
                yield from _wrongs(document, properties[name], each, f"{at}.{name}")
            elif not further:
                yield f"{at}.{name} is not declared"
            elif isinstance(further, dict):
                yield from _wrongs(document, further, each, f"{at}.{name}")
    elif isinstance(value, list):
        for index, each in enumerate(value):
            yield from _wrongs(document, schema.get("items", {}), each, f"{at}[{index}]")
