"""What all loops share: the question, the one tool, the form of structured output, and how they tell what happened."""

import json
from typing import Any

from pydantic import BaseModel

QUESTION = "What is the weather in Oslo, Lima and Cairo? Look each of them up."


class Weather(BaseModel):
    """The weather of one city."""

    city: str
    degrees: int


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: its name
    """
    return f"Sunny in {city}."


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
"""`weather`, as the API of chat completions has it."""


def tell(*, calls: int, answer: Any, structured: Any = None) -> None:
    """The last line that a loop prints: how many tools were called, what came in the end."""
    print(json.dumps({"calls": calls, "answer": answer, "structured": structured}))
