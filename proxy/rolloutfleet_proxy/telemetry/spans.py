"""A span of each chat call, by OpenTelemetry's conventions for generative AI; never any text of a conversation.

The names are those of https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/; what the conventions have no
name for is `rolloutfleet.*`. The SDK reads its own environment variables: sampler, limits, headers, batches.
A span begins with its call, so that engines can go on from it, and has a child for each step that took some time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, Self
from urllib.parse import urlsplit

from opentelemetry.context import Context
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import Span, SpanKind, StatusCode, Tracer, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from rolloutfleet.installed import own_version
from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.telemetry.calls import ChatCall, ReadRequest
from rolloutfleet_proxy.telemetry.collector import Collector
from rolloutfleet_proxy.telemetry.metrics import COMMITTED, JOINED, REPLAYED, Metrics
from rolloutfleet_proxy.telemetry.request_ids import TRACES

OPERATION: Final = "chat"
SHORTEST: Final = 0.001
"""Seconds that a step takes at the least to have a span of its own."""
HELD: Final = "held"
"""The span of a wait for a drain to pass."""

_ENDED_WELL: Final = (COMMITTED, JOINED, REPLAYED)
_TRACE_CONTEXT: Final = TraceContextTextMapPropagator()
_NOWHERE: Final = Context()
_SAMPLING: Final = (
    ("temperature", float),
    ("top_p", float),
    ("top_k", float),
    ("frequency_penalty", float),
    ("presence_penalty", float),
)


@dataclass(frozen=True, slots=True)
class Spans:
    """Writes the spans of a proxy's calls. Close it."""

    tracer: Tracer
    collector: Collector
    model: str
    """That answers; a request may call it by another name."""
    always: Mapping[str, Any]
    """What every call's span says."""

    @classmethod
    def begin(cls, settings: ProxySettings) -> Self:
        """Raises what the SDK does where its variables can't be used."""
        provider = TracerProvider(resource=_resource(settings), shutdown_on_exit=False)
        collector = Collector.of(provider)
        gateway = urlsplit(settings.gateway_url)
        always = {
            "gen_ai.operation.name": OPERATION,
            "gen_ai.provider.name": "sglang",
            "server.address": gateway.hostname or "",
            "server.port": gateway.port or (443 if gateway.scheme == "https" else 80),
        }
        return cls(provider.get_tracer("rolloutfleet", own_version()), collector, settings.model, always)

    def call(
        self, metrics: Metrics, *, request_id: str, headers: Mapping[str, str], api: str, session_id: str
    ) -> TracedCall:
        """A call that begins now."""
        return TracedCall(metrics, spans=self, request_id=request_id, headers=headers, api=api, session_id=session_id)

    async def aclose(self) -> None:
        await self.collector.aclose()


@dataclass(eq=False)
class TracedCall(ChatCall):
    """A call that is told of by a span, too. Where it is not sampled, little is done beside asking the sampler."""

    _: KW_ONLY
    spans: Spans
    _span: Span = field(init=False)
    _epoch: float = field(init=False)
    """What the clock of steps lacks to the time since the epoch."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._epoch = time.time() - time.perf_counter()
        caller = _TRACE_CONTEXT.extract(self.headers, _NOWHERE)
        self._span = self.spans.tracer.start_span(OPERATION, caller, SpanKind.CLIENT)
        self.headers = _going_on(self.headers, self._span)
        if self._span.is_recording():
            self._span.set_attributes(self.spans.always)

    def read(self, session_id: str, asked: ReadRequest) -> None:
        super().read(session_id, asked)
        if self._span.is_recording():
            model = self.spans.model if asked.model is None else asked.model
            self._span.update_name(f"{OPERATION} {model}")
            self._span.set_attributes(_of_request(asked, model))

    def answered(self, turn: Turn) -> None:
        super().answered(turn)
        if self._span.is_recording():
            self._span.set_attributes(_of_turn(turn, self.spans.model))

    @contextmanager
    def held(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            with super().held():
                yield
        finally:
            self._step(HELD, began, time.perf_counter())

    def ended(self) -> None:
        super().ended()
        if self._span.is_recording():
            self._span.set_attributes(self._of_end())
            if self.outcome not in _ENDED_WELL:
                self._span.set_attribute("error.type", self.outcome)
                self._span.set_status(StatusCode.ERROR)
            # The steps of a turn are told of by the call that made it.
            if self.phases is not None and self.role == COMMITTED:
                for step in self.phases.reached():
                    self._step(*step)
        self._span.end()

    def _of_end(self) -> dict[str, Any]:
        said = {
            "gen_ai.conversation.id": self.session_id,
            "rolloutfleet.api": self.api,
            "rolloutfleet.call_id": self.call_id,
            "rolloutfleet.outcome": self.outcome,
            "rolloutfleet.request_id": self.request_id,
            "rolloutfleet.turn_id": self.turn_id,
        }
        status = {"http.response.status_code": self.status} if self.status >= 0 else {}
        return {name: value for name, value in said.items() if value} | status

    def _step(self, name: str, began: float, ended: float) -> None:
        if ended - began >= SHORTEST and self._span.is_recording():
            within = set_span_in_context(self._span, _NOWHERE)
            self.spans.tracer.start_span(name, within, start_time=self._wall(began)).end(self._wall(ended))

    def _wall(self, moment: float) -> int:
        """Nanoseconds since the epoch."""
        return int((self._epoch + moment) * 1e9)


def _going_on(headers: Mapping[str, str], span: Span) -> dict[str, str]:
    """The headers with this span as the one that the engines' are below of."""
    kept = {name: value for name, value in headers.items() if name not in TRACES}
    _TRACE_CONTEXT.inject(kept, set_span_in_context(span, _NOWHERE))
    return kept


def _of_request(asked: ReadRequest, model: str) -> dict[str, Any]:
    said: dict[str, Any] = {"gen_ai.request.model": model, "gen_ai.request.stream": asked.stream}
    if asked.max_tokens is not None:
        said["gen_ai.request.max_tokens"] = asked.max_tokens
    for name, kind in _SAMPLING:
        value = asked.sampling.get(name)
        if value is not None:
            said[f"gen_ai.request.{name}"] = kind(value)
    return said


def _of_turn(turn: Turn, model: str) -> dict[str, Any]:
    said = {
        "gen_ai.response.id": turn.name,
        "gen_ai.response.model": model,
        "gen_ai.response.finish_reasons": [turn.finish_reason],
        "gen_ai.usage.input_tokens": turn.prompt_tokens,
        "gen_ai.usage.output_tokens": len(turn.output_ids),
        "rolloutfleet.weight_versions": [version for version, _ in turn.versions],
    }
    if turn.extras.cached_tokens is not None:
        said["gen_ai.usage.cache_read.input_tokens"] = turn.extras.cached_tokens
    return said


def _resource(settings: ProxySettings) -> Resource:
    """What the spans are of; OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come before what is said here."""
    ours: dict[str, str | int] = {
        "service.name": "rolloutfleet-proxy",
        "service.version": own_version(),
        "service.instance.id": f"{settings.fleet}-{settings.ordinal}",
        "rolloutfleet.fleet": settings.fleet,
        "rolloutfleet.ordinal": settings.ordinal,
    }
    return Resource.create(ours).merge(OTELResourceDetector().detect())
