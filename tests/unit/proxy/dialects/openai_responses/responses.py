"""Turns, requests and streams of the Responses API for tests."""

import json
from array import array
from collections.abc import Iterable
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from rolloutfleet_proxy.dialects.base import Reading
from rolloutfleet_proxy.dialects.openai_responses import OpenAIResponses
from rolloutfleet_proxy.dialects.openai_responses.encoder import ResponsesEncoder
from rolloutfleet_proxy.dialects.openai_responses.request import ResponsesRequest
from rolloutfleet_proxy.domain.events import Committed, Event
from rolloutfleet_proxy.domain.lineage import MAIN
from rolloutfleet_proxy.domain.turn import Extras, Turn

Json = Any

RESPONSES = OpenAIResponses()
TEXTS = {1: b"Hel", 2: b"lo ", 3: "é".encode()[:1], 4: "é".encode()[1:], 5: b"<|im_end|>", 6: b"Hey"}
FIND = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}, "strict": False}
SPAWN = {
    "type": "namespace",
    "name": "agents",
    "description": "Other agents.",
    "tools": [
        {"type": "function", "name": "spawn", "parameters": {"type": "object"}},
        {"type": "custom", "name": "tell"},
    ],
}
PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": {"type": "text"}}
SEARCH = {"type": "web_search", "external_web_access": True}

EVENT = TypeAdapter[ResponseStreamEvent](ResponseStreamEvent)


def turn(**fields: Any) -> Turn:
    return Turn(
        **{
            "session": 1,
            "number": 2,
            "name": "turn-abc",
            "parent": None,
            "trajectory": None,
            "messages": [],
            "output": {"role": "assistant", "content": "Hello é", "reasoning_content": "So."},
            "prompt_ids": array("i", [9, 9]),
            "prompt_tokens": 7,
            "output_ids": array("i", [1, 2, 3, 4, 5]),
            "logprobs": array("f", [-0.5, -0.25, -1.5, -0.0, -2.0]),
            "versions": [(1, 5)],
            "finish_reason": "stop",
            "mixed_cache": False,
            "branch_reason": None,
            "lineage": MAIN,
            "extras": Extras(),
            "reward": None,
            "created_at": 1_700_000_000.75,
            **fields,
        }
    )


def asked(reading: Reading | None = None, **fields: Any) -> ResponsesRequest:
    return RESPONSES.read(json.dumps({"input": "a", **fields}).encode(), reading or Reading())


def encoder(request: ResponsesRequest) -> ResponsesEncoder:
    return RESPONSES.encoder(request, model="some-model", token_bytes=TEXTS.__getitem__)


def whole(made: Turn, request: ResponsesRequest) -> dict[str, Json]:
    data = encoder(request).whole(Committed(made))
    Response.model_validate_json(data, strict=True, extra="forbid")
    found: dict[str, Json] = json.loads(data)
    return found


def events(data: bytes) -> list[dict[str, Json]]:
    """Those of a whole stream, or of its beginning."""
    *blocks, end = data.decode().split("\n\n")
    assert end == ""
    found = []
    for place, block in enumerate(blocks):
        name, text = block.split("\n")
        event = json.loads(text.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert event["sequence_number"] == place
        EVENT.validate_json(text.removeprefix("data: "), strict=True, extra="forbid")
        found.append(event)
    return found


def streamed(happened: Iterable[Event], request: ResponsesRequest) -> list[dict[str, Json]]:
    return events(b"".join(map(encoder(request).encode, happened)))
