"""The Anthropic Messages API, which Claude Code and the Claude Agent SDK speak."""

from __future__ import annotations

import msgspec

from rolloutfleet_proxy.dialects.anthropic_messages import errors
from rolloutfleet_proxy.dialects.anthropic_messages.encoder import MessagesEncoder
from rolloutfleet_proxy.dialects.anthropic_messages.request import MessagesRequest, parse_messages
from rolloutfleet_proxy.dialects.base import Dialect, Reading, TokenBytes
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.headers import Headers


class AnthropicMessages(Dialect[MessagesRequest]):
    """`POST …/v1/messages`, and what its clients ask beside: how long a prompt is, and whether anybody is there."""

    name = "anthropic_messages"
    tells_bodies = b"anthropic_messages"
    api = "the Anthropic API"
    paths = ("/v1/messages", "/sessions/{session_id}/v1/messages")
    count_paths = ("/v1/messages/count_tokens", "/sessions/{session_id}/v1/messages/count_tokens")
    greeting_paths = ("/api/hello", "/sessions/{session_id}/api/hello")
    silence_after = 2.0

    def read(self, body: bytes, reading: Reading) -> MessagesRequest:
        return parse_messages(body, reading)

    def read_to_count(self, body: bytes, reading: Reading) -> MessagesRequest:
        return parse_messages(body, reading, to_count=True)

    def counted(self, tokens: int) -> bytes:
        return msgspec.json.encode({"input_tokens": tokens})

    def encoder(self, request: MessagesRequest, *, model: str, token_bytes: TokenBytes) -> MessagesEncoder:
        return MessagesEncoder(request, model=model)

    def answer_to(self, error: DomainError) -> tuple[int, Headers, bytes]:
        return errors.answer_to(error)

    def error_event(self, error: DomainError) -> bytes:
        return errors.error_event(error)
