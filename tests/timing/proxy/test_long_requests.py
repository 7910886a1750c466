"""Requests of many small parts are read in a time that grows with their size: those below 2 MiB are read on the event
loop, which everybody waits for."""

import json
import time
from typing import Any

import pytest

from rolloutfleet_proxy.dialects.anthropic_messages import AnthropicMessages
from rolloutfleet_proxy.dialects.base import Dialect, Reading
from rolloutfleet_proxy.dialects.openai_responses import OpenAIResponses

USER = {"role": "user", "content": "a"}
SPOKEN = {"role": "assistant", "content": "a" * 40}
REASONED = {"type": "reasoning", "content": "a" * 40}
TOOLS = [{"type": "function", "name": f"f{index}"} for index in range(10_000)]
ALLOWED = {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f1"}] * 10_000}


@pytest.mark.parametrize(
    ("dialect", "asked"),
    [
        pytest.param(AnthropicMessages(), {"max_tokens": 1, "messages": [*[SPOKEN] * 22_000, USER]}, id="assistant"),
        pytest.param(OpenAIResponses(), {"input": [*[REASONED] * 22_000, USER]}, id="reasoning"),
        pytest.param(OpenAIResponses(), {"input": "a", "tools": TOOLS, "tool_choice": ALLOWED}, id="allowed tools"),
    ],
)
def test_what_comes_in_many_parts_is_read_in_linear_time(dialect: Dialect[Any], asked: dict[str, Any]) -> None:
    body = json.dumps(asked).encode()
    assert len(body) < 2 << 20
    began = time.thread_time()
    dialect.read(body, Reading())
    assert time.thread_time() - began < 0.4
