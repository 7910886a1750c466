"""One turn's generation: rounds at the engine until it ends by itself.

A weight update cuts generations (`abort`): the part is kept, and once the fleet goes on, prompt and part are sent
again with the budget reduced. The rounds joined are one turn whose tokens each have their version. A turn that is
cut too often ends with `length`.

Where a grammar holds (`GRAMMARS`), a part can't be continued, since the engine would begin the grammar anew:
such a turn starts from its prompt again.

A gateway or an engine that is away is waited for, up to the gate's `max_hold`. What was lost with a connection is sent
again, under a new rid: from the prompt, or behind what had come of a stream.
"""

from __future__ import annotations

import asyncio
import logging
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from time import perf_counter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rolloutfleet.backoff import Backoff
from rolloutfleet.errors import EVIDENCE_REFUSED
from rolloutfleet_proxy.domain.errors import (
    DomainError,
    EngineError,
    EngineOverloaded,
    GenerationCut,
    InvalidRequest,
    Unavailable,
)
from rolloutfleet_proxy.domain.weights import Versions
from rolloutfleet_proxy.engine.client import Engine, OnChunk, shown
from rolloutfleet_proxy.engine.connections import CONNECT_TIMEOUT
from rolloutfleet_proxy.engine.errors import ConnectionLost
from rolloutfleet_proxy.engine.evidence import Evidence, Reason, Refused, Span, join, with_versions
from rolloutfleet_proxy.engine.pause_gate import PauseGate, Submission
from rolloutfleet_proxy.engine.reply_stream import Chunk
from rolloutfleet_proxy.engine.request import GenerateRequest, extended_json
from rolloutfleet_proxy.telemetry.calls import milliseconds
from rolloutfleet_proxy.telemetry.events import EngineFailure, emit
from rolloutfleet_proxy.telemetry.request_ids import REQUEST_ID

ROUNDS = Backoff(first=0.1, longest=2.0)
"""Between a bare abort while not paused and the next round."""
PAUSED_POLL = 0.5
PAUSED_POLLS = 60
"""How often an engine that was paused by someone else is asked again before a round is sent to it regardless; it
would hold the round."""

STRUCTURAL_TAG = "structural_tag"
JSON_SCHEMA = "json_schema"
GRAMMARS = (JSON_SCHEMA, "regex", "ebnf", STRUCTURAL_TAG)
"""SGLang's sampling parameters that hold a generation to a grammar; it takes one of them."""
BIASES: Mapping[str, Any] = {
    "frequency_penalty": 0,
    "presence_penalty": 0,
    "repetition_penalty": 1,
    "min_new_tokens": 0,
    "logit_bias": {},
    "custom_params": {},
}
"""SGLang's sampling parameters that change logits before log-probabilities are taken of them, or that may, with the
values at which they change none. Temperature is none of them, nor are those that only cut the distribution's tail."""
MOST_LOST = 3
"""Retries of a turn whose connection was lost before a token came: its own request may be what ends the engines."""
ACCEPTED = 2 * CONNECT_TIMEOUT
"""Seconds after which a round that has not failed is taken to be at an engine."""
_NOTHING_RUNS = (InvalidRequest, EngineOverloaded, Unavailable)
"""Answers after which no engine works for the request."""


def grammar_of(sampling: Mapping[str, Any]) -> str | None:
    """Which of `GRAMMARS` holds, if one does."""
    return next((name for name in GRAMMARS if name in sampling), None)


def biases_of(sampling: Mapping[str, Any]) -> list[str]:
    """Which of `BIASES` are in force."""
    return [name for name, neutral in BIASES.items() if sampling.get(name, neutral) != neutral]


class Generation(Struct, frozen=True, kw_only=True):
    """What a turn's rounds need beside the request.

    `on_chunk` gets every new token once, `on_round` is told of each request sent to the gateway, and `on_failure` the
    error code of each that failed.
    """

    engine: Engine
    weights: PauseGate
    submission: Submission
    on_chunk: OnChunk | None = None
    cache_by_version: bool = True
    """Whether each round's prompt is kept from what other weights computed."""
    max_rounds: int = 20
    on_round: Callable[[], None] = lambda: None
    on_failure: Callable[[str], None] = lambda code: None
    on_outage: Callable[[bool], None] = lambda unreachable: None
    """Called with True when no gateway or engine can be reached, with False when one can or a pause is waited for."""

    async def run(self, request: GenerateRequest) -> Evidence:
        """Generate a turn; `request.rid` is made one rid a round.

        The evidence's spans are set, and its finish reason is stop or length. Raises DomainError and Refused as
        `Engine.generate` does. Cancelled, it ends the engine's work.
        """
        parts: list[Evidence] = []
        made: array[int] = array("i")
        cuts, outage = 0, _Outage(self)
        for number in count():
            arrivals = _Arrivals(self.weights, self.on_chunk)
            try:
                with outage.watching():
                    part = await self._round(
                        _next_round(request, made, number=number), arrivals, again=outage.under_way
                    )
            except (Unavailable, ConnectionLost) as error:
                # Tokens that were passed on can't be made again.
                if arrivals.count or not outage.may_retry(error):
                    raise
                await outage.wait(unbegun=not made)
                continue
            if part is not None and part.finish_reason != "abort":
                parts.append(part)
                return _whole(parts)
            if part is not None and len(part.output_ids):
                if grammar_of(request.sampling) is None:
                    parts.append(part)
                    made += part.output_ids
                elif self.on_chunk is not None:
                    # What has been shown to a client can't be taken back to begin a grammar again.
                    raise GenerationCut()
            cuts += 1
            if len(made) >= request.max_new_tokens or cuts == self.max_rounds:
                break
            await self._until_free(cuts)
        if not parts:
            raise EngineError(f"The generation was cut {self.max_rounds} times before a token came.")
        return replace(join(parts), finish_reason="length")

    async def _round(self, request: GenerateRequest, arrivals: _Arrivals, *, again: bool) -> Evidence | None:
        """One part with its versions; None where a pause cut it while the engine held it. A round that is sent
        `again` has its failures logged already."""
        self.on_round()
        began, sent = perf_counter(), self.weights.state.versions
        if self.cache_by_version:
            request = replace(request, extra_key=sent.cache_key)
        evidence: Evidence | None = None
        try:
            with self.submission.cut:
                evidence = await self.engine.generate(request, arrivals.streamed, clock=self.weights.served)
        except BaseException as error:
            if isinstance(error, DomainError | Refused):
                self.on_failure(_failure_code(error))
                if not again:
                    _log_failure(error, request, url=self.engine.generate_url, began=began)
            if not isinstance(error, _NOTHING_RUNS):
                self.engine.abort_soon(request.rid)
            if not isinstance(error, ConnectionLost) or error.part is None or grammar_of(request.sampling) is not None:
                raise
            evidence = error.part
        if evidence is not None:
            part = arrivals.with_versions(evidence)
            if _may_have_met_older_cache(part, sent, by_version=self.cache_by_version):
                self.submission.mixed_cache = True
            return part
        self.engine.abort_soon(request.rid)
        if arrivals.count:
            raise GenerationCut()
        return None

    async def _until_free(self, cuts: int) -> None:
        """Wait until the next round may be sent, after so many that were cut."""
        if self.weights.paused:
            await self.submission.resumed()
            return
        await asyncio.sleep(ROUNDS.after(cuts))
        for _ in range(PAUSED_POLLS):
            if self.weights.paused or not await self.engine.any_paused():
                break
            await asyncio.sleep(PAUSED_POLL)
        await self.submission.resumed()


class _Outage:
    """One turn's retries while gateways or engines are unavailable."""

    def __init__(self, generation: Generation) -> None:
        self._generation = generation
        self._failures = 0
        """In a row."""
        self._since = 0.0
        self._lost = 0

    @property
    def under_way(self) -> bool:
        """True where the last round failed so."""
        return self._failures > 0

    def may_retry(self, error: DomainError) -> bool:
        """Count a failure; True where the round may be sent again."""
        now = self._generation.weights.served()
        if not self._failures:
            self._since = now
        self._failures += 1
        self._lost += isinstance(error, ConnectionLost)
        return self._lost <= MOST_LOST and now - self._since < self._generation.weights.max_hold

    async def wait(self, *, unbegun: bool) -> None:
        """Return when the next round may be sent."""
        generation = self._generation
        generation.on_outage(True)
        await generation.submission.rest(ROUNDS.after(self._failures), unbegun=unbegun)
        if generation.weights.paused:
            generation.on_outage(False)
        await generation.submission.resumed()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """A context around each round. A round that succeeds ends the outage; to listeners, one that lasts does too."""
        if not self._failures:
            yield
            return
        presumed = asyncio.get_running_loop().call_later(ACCEPTED, self._generation.on_outage, False)
        try:
            yield
        finally:
            presumed.cancel()
        self._failures = 0
        self._generation.on_outage(False)


class _Arrivals:
    """Hands chunks on, and notes which version the proxy knew of as they came."""

    def __init__(self, weights: PauseGate, on_chunk: OnChunk | None) -> None:
        self.count = 0
        self._weights = weights
        self._on_chunk = on_chunk
        self._sent_at = weights.version
        self._spans: list[Span] = []

    @property
    def streamed(self) -> _Arrivals | None:
        """What gets the chunks; None where nobody wants them as they come."""
        return None if self._on_chunk is None else self

    def __call__(self, chunk: Chunk) -> None:
        start, self.count = self.count, self.count + len(chunk.output_ids)
        self._spans.append(Span(self._weights.version, start, self.count))
        if self._on_chunk is not None:
            self._on_chunk(chunk)

    def with_versions(self, evidence: Evidence) -> Evidence:
        """Tokens that came in no chunk get the version at the time of sending: never newer than they are."""
        total, now = len(evidence.output_ids), self._weights.version
        own = self._spans
        if self.count < total:
            own = [*own, Span(self._sent_at, self.count, total)]
        return with_versions(evidence, own, known=(self._sent_at, now))


def _next_round(request: GenerateRequest, made: array[int], *, number: int) -> GenerateRequest:
    """The request behind what is made. Its rid ends in a dot, so that round 1 is not a prefix of round 10."""
    rid = f"{request.rid}.{number}."
    if not made:
        return replace(request, rid=rid)
    sampling = dict(request.sampling)
    if "min_new_tokens" in sampling:
        sampling["min_new_tokens"] = max(0, sampling["min_new_tokens"] - len(made))
    return replace(
        request,
        rid=rid,
        prompt_json=extended_json(request.prompt_json, made),
        prompt_tokens=request.prompt_tokens + len(made),
        max_new_tokens=request.max_new_tokens - len(made),
        sampling=sampling,
    )


def _may_have_met_older_cache(part: Evidence, sent: Versions, *, by_version: bool) -> bool:
    """Whether a round's prompt may stand on a prefix cache that other weights computed. `sent`: the weights, as far as
    was known when it was sent.

    Kept apart by version, only where the engine had other weights than its key says.
    """
    if by_version:
        return any(span.version != sent.version for span in (part.spans or ())[:1])
    return sent.may_meet_older_cache and part.cached_tokens != 0


def _whole(parts: list[Evidence]) -> Evidence:
    joined = join(parts)
    if not len(joined.output_ids):
        raise Refused(Reason.EMPTY, f"The reply ended with {joined.finish_reason} and holds no token.")
    return joined


def _failure_code(error: DomainError | Refused) -> str:
    return EVIDENCE_REFUSED if isinstance(error, Refused) else error.code


def _log_failure(error: DomainError | Refused, request: GenerateRequest, *, url: str, began: float) -> None:
    """Log a failure of a round that began at `began` (perf_counter).

    What the engine said is left out: it may quote the conversation.
    """
    emit(
        EngineFailure(
            request_id=request.headers.get(REQUEST_ID, ""),
            session_id=request.routing_key,
            turn_id=request.rid,
            url=shown(url),
            elapsed_ms=milliseconds(perf_counter() - began),
            error_type=_error_type(error),
            code=_failure_code(error),
        ),
        logging.WARNING,
    )


def _error_type(error: DomainError | Refused) -> str:
    """The reason of a refusal; the name of the exception behind an error where there is one, else its code."""
    if isinstance(error, Refused):
        return error.reason
    return type(error.__context__).__name__ if error.__context__ is not None else error.code
