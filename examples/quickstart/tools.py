"""The tools that the quickstart's agents have. Their results are made up, and always the same."""

import hashlib
import json
from typing import Any


def _function(name: str, description: str, **properties: dict[str, Any]) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": list(properties)[:1]}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


TOOLS = [
    _function(
        "get_weather",
        "The weather of a city now.",
        city={"type": "string"},
        unit={"type": "string", "enum": ["celsius", "fahrenheit"]},
    ),
    _function(
        "search", "Search the web.", query={"type": "string"}, limit={"type": "integer", "minimum": 1, "maximum": 5}
    ),
    _function("convert", "Convert an amount of money.", amount={"type": "number", "minimum": 0}, to={"type": "string"}),
]


def run_tool(name: str, arguments: str) -> str:
    """The tool's result as text; a model's mistake in the arguments is told to the model."""
    try:
        given = json.loads(arguments)
    except ValueError:
        return "error: the arguments are no JSON"
    figure = int(hashlib.sha256(f"{name}{arguments}".encode()).hexdigest()[:4], 16)
    match name:
        case "get_weather":
            return json.dumps({"city": given.get("city"), "degrees": figure % 35, "sky": "clear"})
        case "search":
            found = [f"result {index} of {figure % 90}" for index in range(int(given.get("limit") or 2))]
            return json.dumps({"results": found})
        case "convert":
            return json.dumps({"amount": figure / 100, "currency": given.get("to")})
    return f"error: there is no tool {name}"
