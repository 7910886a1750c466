"""The OpenAI chat completions API."""

from __future__ import annotations

from rolloutfleet_proxy.dialects.base import Dialect, Reading, TokenBytes
from rolloutfleet_proxy.dialects.openai_chat.encoder import ChatEncoder, error_event
from rolloutfleet_proxy.dialects.openai_chat.request import ChatRequest, parse_chat
from rolloutfleet_proxy.domain.errors import DomainError


class OpenAIChat(Dialect[ChatRequest]):
    """`POST …/v1/chat/completions`."""

    name = "openai_chat"
    api = "the OpenAI API"
    paths = ("/v1/chat/completions", "/sessions/{session_id}/v1/chat/completions")

    def read(self, body: bytes, reading: Reading) -> ChatRequest:
        return parse_chat(body, reading)

    def encoder(self, request: ChatRequest, *, model: str, token_bytes: TokenBytes) -> ChatEncoder:
        return ChatEncoder(request, model=model, token_bytes=token_bytes)

    def error_event(self, error: DomainError) -> bytes:
        return error_event(error)
