"""Parameters of tools whose forms multiply where nothing bounds them."""

from typing import Any

from rolloutfleet_proxy.tokens.call_reading import SpelledCalls
from rolloutfleet_proxy.tokens.reply_grammar import Parameters, text

MANY = 100


def spelled(*, python_words: bool) -> Parameters:
    calls = SpelledCalls(("", ""), ("<", ">", "</>"), python_words=python_words)
    return Parameters(calls, lambda value: [text(value)], ())


PARAMETERS = spelled(python_words=False)


def declared(value: Any, **definitions: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"v": value}, "$defs": definitions}


REFERENCE = {"$ref": "#/$defs/D"}
LISTS = [{"type": "array", "items": REFERENCE}] * MANY
GROWING = {
    "references to lists of references": declared({"anyOf": [REFERENCE] * MANY}, D={"anyOf": LISTS}),
    "references to alternatives": declared({"anyOf": [REFERENCE] * MANY}, D={"anyOf": [{"type": "null"}] * MANY}),
    "references to enumerations": declared({"anyOf": [REFERENCE] * MANY}, D={"enum": [str(n) for n in range(MANY)]}),
    "alternatives of alternatives": declared({"anyOf": [{"anyOf": [REFERENCE] * 10}] * 10}, D={"anyOf": LISTS}),
    "arguments that refer": {
        "properties": {f"p{n}": {"anyOf": [REFERENCE] * 10} for n in range(MANY)},
        "$defs": {"D": {"anyOf": LISTS[:10]}},
    },
}
