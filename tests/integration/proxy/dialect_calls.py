"""Calls in each dialect, and the answers that their streams add up to."""

from __future__ import annotations

import json
from typing import Any

import httpx
from tests.fleets import AgentSession
from tests.unit.proxy.dialects.anthropic_messages import test_encoder as messages_streams
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES
from tests.unit.proxy.dialects.openai_responses import responses as responses_streams
from tests.waiting import PATIENCE

from rolloutfleet_proxy.dialects.base import Dialect

Json = Any
PATHS = {CHAT.name: "chat/completions", MESSAGES.name: "messages", RESPONSES.name: "responses"}


def post(
    session: AgentSession, dialect: Dialect[Any], body: Json, *, stream: bool = False, **more: str
) -> httpx.Response:
    headers = {"authorization": f"Bearer {session.api_key}"}
    headers |= {name.replace("_", "-"): value for name, value in more.items()}
    address = f"{session.base_url}/{PATHS[dialect.name]}"
    return httpx.post(address, json={**body, "stream": stream}, headers=headers, timeout=PATIENCE).raise_for_status()


def assembled(dialect: Dialect[Any], stream: bytes) -> Json:
    """The whole answer, as a client of the dialect has it in the end."""
    if dialect is RESPONSES:
        return responses_streams.events(stream)[-1]["response"]
    if dialect is MESSAGES:
        return messages_streams.assembled(messages_streams.events(stream))
    message: Json = {"role": "assistant", "content": ""}
    for line in stream.decode().split("\n\n")[:-2]:
        for choice in json.loads(line.removeprefix("data: "))["choices"] if line.startswith("data: ") else ():
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            if "reasoning_content" in delta:
                message["reasoning_content"] = message.get("reasoning_content", "") + delta["reasoning_content"]
            for each in delta.get("tool_calls", ()):
                message.setdefault("tool_calls", []).append({key: each[key] for key in ("id", "type", "function")})
    return {"choices": [{"message": message}]}
