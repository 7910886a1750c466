"""Streams to the byte, as the clients of agents are known to read them."""

import json
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES, call
from tests.unit.proxy.dialects.openai_responses.responses import FIND, PATCH, SPAWN, TEXTS, turn

from rolloutfleet_proxy.dialects.base import Dialect, Reading
from rolloutfleet_proxy.domain.errors import SessionDeleted
from rolloutfleet_proxy.domain.events import Committed, Event, Failed, Reasoning, Started, Text, Tokens, ToolCall
from rolloutfleet_proxy.domain.turn import Extras

GOLDEN = Path(__file__).parent / "golden"
STARTED = Started("turn-abc", 1_700_000_000.75, 7)
CALLS = [
    call("find", '{"q": "é"}', "call_a"),
    call("agents__spawn", "{}", "call_b"),
    call("apply_patch", '{"input": "*** Begin\\n"}', "call_c"),
]
FUNCTIONS = ("find", "agents__spawn", "apply_patch")
USER = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT.name: {
        "messages": USER,
        "tools": [{"type": "function", "function": {"name": name, "parameters": {}}} for name in FUNCTIONS],
        "stream_options": {"include_usage": True},
    },
    MESSAGES.name: {
        "messages": USER,
        "max_tokens": 9,
        "tools": [{"name": name, "input_schema": {}} for name in FUNCTIONS],
    },
    RESPONSES.name: {"input": "a", "instructions": "Be brief.", "tools": [FIND, SPAWN, PATCH]},
}
LOGPROBS: dict[str, dict[str, Any]] = {
    CHAT.name: {"logprobs": True, "top_logprobs": 1},
    RESPONSES.name: {"top_logprobs": 1},
}
"""Messages have none."""

SILENCE = None
"""The engine says nothing for so long that a keep-alive is sent."""
ROWS = [[(-0.5, 1)], [(-0.25, 2)], [(-1.5, 3)], [(-0.0, 4)], [(-2.0, 5)]]
TOKENS = Tokens([1, 2, 3, 4, 5], array("f", [-0.5, -0.25, -1.5, -0.0, -2.0]), ROWS)

STREAMS: dict[str, Sequence[Event | None]] = {
    "calls": [
        *(STARTED, SILENCE, SILENCE, Reasoning("So"), Reasoning("."), Text("Hello "), SILENCE, Text("é")),
        *(ToolCall(n, each["id"], **each["function"]) for n, each in enumerate(CALLS)),
        Committed(
            turn(
                output={"role": "assistant", "content": "Hello é", "reasoning_content": "So.", "tool_calls": CALLS},
                finish_reason="tool_calls",
                extras=Extras(cached_tokens=3),
            )
        ),
    ],
    "logprobs": [
        STARTED,
        Text("Hello é", TOKENS),
        Committed(turn(output={"role": "assistant", "content": "Hello é"}, extras=Extras(top_logprobs=ROWS))),
    ],
    "cut-off-thinking": [
        *(STARTED, Reasoning("So")),
        Committed(turn(output={"role": "assistant", "content": "", "reasoning_content": "So"}, finish_reason="length")),
    ],
    "without-a-word": [STARTED, Committed(turn(output={"role": "assistant", "content": ""}))],
    "failed": [STARTED, Text("Hello"), Failed(SessionDeleted("It was deleted."))],
}


@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("dialect", [CHAT, MESSAGES, RESPONSES], ids=lambda each: each.name)
def test_a_stream_to_the_byte(dialect: Dialect[Any], name: str) -> None:
    asked = BODIES[dialect.name] | {"model": "m", "stream": True}
    if name == "logprobs":
        asked |= LOGPROBS.get(dialect.name, {})
    request = dialect.read(json.dumps(asked).encode(), Reading())
    encoder = dialect.encoder(request, model="some-model", token_bytes=TEXTS.__getitem__)
    sent = b"".join(encoder.silence() if event is None else encoder.encode(event) for event in STREAMS[name])
    assert sent.decode() == (GOLDEN / f"{dialect.name}-{name}.sse").read_text()
