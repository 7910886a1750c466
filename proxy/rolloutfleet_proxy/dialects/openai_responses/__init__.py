"""The OpenAI Responses API."""

from __future__ import annotations

from rolloutfleet_proxy.dialects.base import Dialect, Reading, TokenBytes
from rolloutfleet_proxy.dialects.openai_responses.encoder import ResponsesEncoder, error_event
from rolloutfleet_proxy.dialects.openai_responses.refusals import answer_to
from rolloutfleet_proxy.dialects.openai_responses.request import ResponsesRequest, parse_responses
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.http.headers import Headers


class OpenAIResponses(Dialect[ResponsesRequest]):
    """`POST …/v1/responses`."""

    name = "openai_responses"
    tells_bodies = b"openai_responses"
    api = "the OpenAI Responses API"
    paths = ("/v1/responses", "/sessions/{session_id}/v1/responses")
    silence_after = 2.0

    def read(self, body: bytes, reading: Reading) -> ResponsesRequest:
        return parse_responses(body, reading)

    def encoder(self, request: ResponsesRequest, *, model: str, token_bytes: TokenBytes) -> ResponsesEncoder:
        return ResponsesEncoder(request, model=model, token_bytes=token_bytes)

    def answer_to(self, error: DomainError) -> tuple[int, Headers, bytes]:
        return answer_to(error)

    def error_event(self, error: DomainError) -> bytes:
        return error_event(error)
