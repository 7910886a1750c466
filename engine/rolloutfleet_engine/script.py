"""What the model says to a scene: reasoning, tool calls whose arguments fit their schemas, answers. Pure."""

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from rolloutfleet_engine.cues import Cue, CuedReply
from rolloutfleet_engine.phrases import NOUNS, PLACES, sentence
from rolloutfleet_engine.scene import Scene, Thinking, Tool

CALL_CHANCES = (0.9, 0.6, 0.35)
"""How likely another tool call is after 0, 1, 2 … rounds of them; then comes the answer."""

FLOURISHES = (
    "C'est déjà prévu — naïve, but fine.",
    "完成了。",
    "Größe: 34 µm, 20 °C.",
    "✅ done 🙂",
    "- first\n- second\n- third",
    "```python\nprint('hello')\n```",
)
ENDING_TOOLS = ("final_answer", "final_result", "submit")
"""Tools by which smolagents, pydantic-ai and inspect-ai are told the answer: called instead of one in words."""
DEPTH_LIMIT = 6
MOST_ITEMS: Final = 64
"""Of an array at the top, whatever its schema wants; a quarter of that a level deeper."""
LONGEST_TEXT: Final = 4_000
LARGEST: Final = 10**18


@dataclass(frozen=True, kw_only=True, slots=True)
class LoopOptions:
    """How an agent's loop goes."""

    rounds: int | None = None
    """Answers with one tool call each before the last one; None: up to three with some, by chance."""

    last_call: Mapping[str, Any] | None = None
    """The call, `{name, arguments}`, that tells an agent that all is done, where no tool of `ENDING_TOOLS` does."""

    cues: tuple[Cue, ...] = ()
    """Replies that are laid down; with any, no call is made up."""


def speak(scene: Scene, rng: random.Random, loop: LoopOptions) -> str:
    """The whole reply as text with Qwen's tags, without the end token."""
    ending = next((tool for tool in scene.tools if tool.name in ENDING_TOOLS), None)
    working = replace(scene, tools=tuple(tool for tool in scene.tools if tool is not ending))
    thought = reasoning(scene, rng)
    if wants_tool(working, rng, loop):
        return thought + (calls(working, rng) if loop.rounds is None else call(rng.choice(working.tools), rng))
    if ending is not None:
        return thought + call(ending, rng)
    return thought + (answer(scene, rng) if loop.last_call is None else written_call(loop.last_call))


def speak_on_cue(reply: CuedReply | None, scene: Scene, rng: random.Random) -> str:
    """The reply that is laid down, as text with Qwen's tags; an answer in words where there is none."""
    if reply is None:
        return reasoning(scene, rng) + answer(scene, rng)
    thought = thinking(reply.reasoning, scene) if reply.reasoning or scene.thinking is Thinking.OPEN else ""
    written = [written_call({"name": call.name, "arguments": call.arguments}) for call in reply.calls]
    return thought + "\n".join(filter(None, (reply.text, *written)))


def babble(rng: random.Random) -> str:
    """More words, for a request that may not end."""
    return " " + sentence(rng)


def wants_tool(scene: Scene, rng: random.Random, loop: LoopOptions) -> bool:
    if loop.rounds is not None:
        return bool(scene.tools) and scene.answers < loop.rounds
    if not scene.tools or scene.rounds >= len(CALL_CHANCES):
        return False
    return rng.random() < CALL_CHANCES[scene.rounds]


def reasoning(scene: Scene, rng: random.Random) -> str:
    if scene.thinking is Thinking.CLOSED or (scene.thinking is Thinking.FREE and rng.random() < 0.25):
        return ""
    return thinking(sentences(rng, 1, 4), scene)


def thinking(said: str, scene: Scene) -> str:
    """What is said within the tags; nothing where the prompt has ruled it out."""
    if scene.thinking is Thinking.CLOSED:
        return ""
    opening = "<think>\n" if scene.thinking is Thinking.FREE else ""
    return f"{opening}{said}\n</think>\n\n"


def calls(scene: Scene, rng: random.Random) -> str:
    lead = f"{sentence(rng)}\n" if rng.random() < 0.3 else ""
    count = rng.choices((1, 2, 3), weights=(65, 25, 10))[0]
    return lead + "\n".join(call(rng.choice(scene.tools), rng) for _ in range(count))


def call(tool: Tool, rng: random.Random) -> str:
    arguments = value_for(tool.parameters, rng, root=tool.parameters)
    return written_call({"name": tool.name, "arguments": arguments if isinstance(arguments, dict) else {}})


def written_call(body: Mapping[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps(body, ensure_ascii=False)}\n</tool_call>"


def answer(scene: Scene, rng: random.Random) -> str:
    parts = [f"The tool said: {scene.excerpt}."] if scene.results and scene.excerpt else []
    parts.append(sentences(rng, 1, 4))
    if rng.random() < 0.3:
        parts.append(rng.choice(FLOURISHES))
    return "\n\n".join(parts)


def sentences(rng: random.Random, low: int, high: int) -> str:
    return " ".join(sentence(rng) for _ in range(rng.randint(low, high)))


def value_for(schema: Any, rng: random.Random, *, root: dict[str, Any], depth: int = 0) -> Any:
    """A value that fits a JSON schema of the kinds that tools declare; a string where the schema says nothing."""
    schema = resolve(schema, root)
    for fixed in ("const", "default"):
        if fixed in schema and (fixed == "const" or rng.random() < 0.3):
            return schema[fixed]
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return rng.choice(schema["enum"])
    for choice in ("anyOf", "oneOf"):
        if isinstance(schema.get(choice), list) and schema[choice]:
            return value_for(rng.choice(schema[choice]), rng, root=root, depth=depth + 1)
    match kind_of(schema):
        case "object":
            return object_for(schema, rng, root=root, depth=depth)
        case "array":
            return array_for(schema, rng, root=root, depth=depth)
        case "integer" | "number" as kind:
            return number_for(schema, rng, whole=kind == "integer")
        case "boolean":
            return rng.random() < 0.5
        case "null":
            return None
        case _:
            return string_for(schema, rng)


def resolve(schema: Any, root: dict[str, Any]) -> dict[str, Any]:
    """`schema` with a local `$ref` followed; anything that is not an object allows everything."""
    for _ in range(DEPTH_LIMIT):
        if not isinstance(schema, dict) or not isinstance(schema.get("$ref"), str):
            break
        target: Any = root
        for step in schema["$ref"].removeprefix("#").strip("/").split("/"):
            target = target.get(step, {}) if isinstance(target, dict) else {}
        schema = target
    return schema if isinstance(schema, dict) else {}


def kind_of(schema: dict[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, list):
        return next((one for one in kind if isinstance(one, str) and one != "null"), "null")
    if isinstance(kind, str):
        return kind
    return "object" if "properties" in schema else "string"


def object_for(schema: dict[str, Any], rng: random.Random, *, root: dict[str, Any], depth: int) -> dict[str, Any]:
    properties = schema.get("properties")
    properties = properties if isinstance(properties, dict) else {}
    required = schema.get("required")
    required = required if isinstance(required, list) else []
    deep = depth >= DEPTH_LIMIT
    names = [name for name in properties if name in required or (not deep and rng.random() < 0.5)]
    names += [name for name in required if isinstance(name, str) and name not in properties]
    return {name: value_for(properties.get(name, {}), rng, root=root, depth=depth + 1) for name in names}


def array_for(schema: dict[str, Any], rng: random.Random, *, root: dict[str, Any], depth: int) -> list[Any]:
    low = min(MOST_ITEMS >> 2 * depth, max(0, whole_number(schema.get("minItems"), 0 if depth >= DEPTH_LIMIT else 1)))
    high = max(low, min(low + 2, whole_number(schema.get("maxItems"), low + 2)))
    count = low if depth >= DEPTH_LIMIT else rng.randint(low, high)
    return [value_for(schema.get("items", {}), rng, root=root, depth=depth + 1) for _ in range(count)]


def number_for(schema: dict[str, Any], rng: random.Random, *, whole: bool) -> int | float:
    low = bound(schema, "minimum", "exclusiveMinimum", inward=1)
    high = bound(schema, "maximum", "exclusiveMaximum", inward=-1)
    low = low if low is not None else min(0.0, (high or 100.0) - 100.0)
    high = max(low, high if high is not None else low + 100.0)
    if not whole:
        return round(low + rng.random() * (high - low), 2)
    step = max(1, whole_number(schema.get("multipleOf"), 1))
    first, last = math.ceil(low / step), math.floor(high / step)
    return rng.randint(first, max(first, last)) * step


def bound(schema: dict[str, Any], inclusive: str, exclusive: str, *, inward: int) -> float | None:
    """A limit of a number's schema; an exclusive one is moved inward by one, which suits whole numbers too."""
    for name, shift in ((inclusive, 0), (exclusive, inward)):
        value = schema.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value + shift)
    return None


def whole_number(value: Any, otherwise: int) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return otherwise
    return int(max(-LARGEST, min(value, LARGEST)))


def string_for(schema: dict[str, Any], rng: random.Random) -> str:
    formats = {
        "date": "2025-11-21",
        "date-time": "2025-11-21T10:30:00Z",
        "time": "10:30:00Z",
        "email": "ada@example.org",
        "uri": "https://example.org/page",
        "uuid": "12345678-1234-4234-8234-123456789abc",
    }
    text = formats.get(str(schema.get("format"))) or f"{rng.choice(PLACES)} {rng.choice(NOUNS)}"
    low, high = whole_number(schema.get("minLength"), 0), whole_number(schema.get("maxLength"), 10_000)
    return text.ljust(min(low, LONGEST_TEXT), "x")[: max(low, high)]
