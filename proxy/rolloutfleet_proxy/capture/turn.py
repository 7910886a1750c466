"""A turn, step by step, from a request to a committed row.

1. The session was found by `endpoint`; here it must have room for a turn.
2. Its tree says which turns the request's messages continue, and the prompt's ids are such a turn's and the new
   messages', checked token by token; else a new branch's (`prompting`).
3. The engine generates, in as many rounds as pauses make of it (`generation`), and its tokens are streamed as they
   come (`streaming`).
4. What came back is checked as evidence, and read as a message.
5. It is committed (`services.turns`). Only then does the answer leave.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct

from rolloutfleet.errors import CANCELLED, INTERNAL
from rolloutfleet.wire import FinishReason
from rolloutfleet_proxy.capture import following
from rolloutfleet_proxy.capture.generation import Generator
from rolloutfleet_proxy.capture.job import TurnJob
from rolloutfleet_proxy.capture.prompting import Prompted, Prompting, PromptJob
from rolloutfleet_proxy.capture.retries import Attempt
from rolloutfleet_proxy.capture.sampling import sampled
from rolloutfleet_proxy.capture.streaming import TurnStream
from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.errors import (
    ContextExceeded,
    DomainError,
    StoreBusy,
    TokenLimitReached,
    TurnLimitReached,
)
from rolloutfleet_proxy.domain.events import Started
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.messages import Conversation, Message, append, call_ids, reasoning_digest
from rolloutfleet_proxy.domain.turn import Delivery, Extras, NewTurn, Turn
from rolloutfleet_proxy.engine.evidence import Evidence
from rolloutfleet_proxy.engine.generation import STRUCTURAL_TAG, biases_of, grammar_of
from rolloutfleet_proxy.engine.pause_gate import PauseGate, Submission
from rolloutfleet_proxy.http.in_flight import Held
from rolloutfleet_proxy.ids import random_hex
from rolloutfleet_proxy.services.models import check_served
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.paths import Path
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.writer import PATIENCE
from rolloutfleet_proxy.telemetry.events import TurnBranched, TurnEndedUnwaited, emit
from rolloutfleet_proxy.telemetry.metrics import BRANCH, COMMITTED, EXTENDING, FIRST, Metrics
from rolloutfleet_proxy.telemetry.phases import COMMIT, DONE, ENGINE, PAUSE, QUEUE, TOKENISE_IN, TOKENISE_OUT
from rolloutfleet_proxy.tokens.reading import GrowingReply, Reply
from rolloutfleet_proxy.tokens.reading import Reader as ReplyReader
from rolloutfleet_proxy.tokens.render import Prompt
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing


class TurnMaker(Struct, frozen=True, kw_only=True):
    """Makes turns."""

    reader: Reader
    prompting: Prompting
    generator: Generator
    tokenizing: Tokenizing
    gate: PauseGate
    turns: TurnService
    metrics: Metrics
    settings: SettingsInForce
    sessions: SessionService

    def begin(
        self,
        session: Session,
        request: TurnRequest,
        conversation: Conversation,
        attempt: Attempt,
        lineage: Lineage,
        headers: Mapping[str, str],
        held: Held,
    ) -> Call:
        """Start a turn. Raises TurnLimitReached or TokenLimitReached where the session's limits leave no room for it,
        ModelNotFound, and DiskFull where the disk has too little room left to keep it."""
        if request.model is not None:
            check_served(request.model, self.settings.current, param=request.called("model"))
        try:
            _check_limits(session)
        except DomainError as error:
            self.sessions.note_use(session, error)
            raise
        self.turns.check_room()
        call = Call(f"turn-{random_hex()}", attempt.digest, attempt.idempotency_key, request.stream, held.share())
        job = TurnJob(
            session=session,
            request=request,
            conversation=conversation,
            attempt=attempt,
            lineage=session.lineages.take_in(lineage),
            headers=headers,
            call=call,
            began=time.time(),
        )
        session.calls.start(call, partial(self._counted, job))
        return call

    async def _counted(self, job: TurnJob) -> Turn:
        """The turn, and what became of it in metrics and log."""
        call, outcome, failure = job.call, INTERNAL, None
        with self.metrics.call_in_flight():
            try:
                made = await self._made(job)
                outcome = COMMITTED
                return made
            except DomainError as error:
                outcome, failure = error.code, error
                if isinstance(error, ContextExceeded):
                    error.param = job.request.called("messages")
                raise
            except asyncio.CancelledError:
                outcome = call.ended_by.code if call.ended_by is not None else CANCELLED
                raise
            finally:
                call.phases.stop()
                self.metrics.turns_ended.labels(outcome).inc()
                if outcome != COMMITTED:
                    self.sessions.note_use(job.session, failure)
                if call.abandoned:
                    # Its caller has gone: no call's line will say what became of it.
                    self.metrics.turns_unwaited.labels(outcome).inc()
                    emit(TurnEndedUnwaited(**job.names, outcome=outcome))

    async def _made(self, job: TurnJob) -> Turn:
        call, phases = job.call, job.call.phases
        phases.begin(QUEUE)
        job = await following.whole(job, self.reader, most=self.settings.current.body_limit)
        prompted = await self.prompting.prompt(_prompt_job(job))
        prompt = prompted.prompt
        phases.begin(PAUSE)
        phases.prompt_tokens = len(prompt.ids)
        call.emit(Started(call.turn_name, job.began, len(prompt.ids)))
        stream = self._stream(job, prompted) if call.streams else None
        async with self.gate.submission() as submission:
            phases.begin(ENGINE)
            on_chunk = None if stream is None else stream.feed
            evidence = await self.generator.generate(job, prompted, submission, on_chunk)
        phases.begin(TOKENISE_OUT)
        # Made here, so that a call that waits for its engine does not hold one.
        reply_reader = self._reply_reader(job, prompted)
        ids = _without_stop_token(job, evidence, reply_reader)
        reply = await self.tokenizing.read(reply_reader, ids, stop=_stop_string(job, evidence))
        if stream is not None:
            stream.finish(reply)
        new = self._row(job, prompted, evidence, reply, submission)
        first = not job.session.tree.has_turns_of(job.lineage)
        call.committing, call.prompt_ids = True, prompt.ids
        phases.begin(COMMIT)
        path = Path(prompt.ids, new.output_ids, prompted.prompt_json)
        made = await self._committed(job, new, path)
        call.number = made.number
        if call.abandoned:
            self.turns.lost(job.session, made.number)
        phases.begin(DONE)
        self._count(job, made, prompted, first=first)
        return made

    async def _committed(self, job: TurnJob, new: NewTurn, path: Path) -> Turn:
        """The turn in the store. Where that takes too long, those who wait are let go, and get it by asking again."""
        stalled = asyncio.get_running_loop().call_later(PATIENCE, job.call.stall, StoreBusy())
        try:
            return await self.turns.commit(job.session, new, path)
        finally:
            stalled.cancel()

    def _reply_reader(self, job: TurnJob, prompted: Prompted) -> ReplyReader:
        seed = job.call.turn_name.encode()
        return self.tokenizing.chat_format.reader(prompted.prompt.ids, job.request.template, seed=seed)

    def _stream(self, job: TurnJob, prompted: Prompted) -> TurnStream:
        return TurnStream(
            call=job.call,
            reply=GrowingReply(
                self._reply_reader(job, prompted),
                stops=job.request.stops,
                stop_token_ids=job.request.sampling.get("stop_token_ids", ()),
            ),
            vocabulary_size=self.tokenizing.chat_format.vocabulary_size,
            with_logprobs=job.request.logprobs,
        )

    def _row(
        self,
        job: TurnJob,
        prompted: Prompted,
        evidence: Evidence,
        reply: Reply,
        submission: Submission,
    ) -> NewTurn:
        message, rules = reply.message, self.tokenizing.chat_format.rules
        session, prompt, asked = job.session, prompted.prompt, prompted.asked
        start, parent = prompted.continued.length, prompted.continued.node
        covered = 0 if parent is None else session.briefs[parent.turn].tokens
        messages = prompted.continued.messages[start:]
        own = [*messages, message]
        reasonings = [*asked.reasonings[start:], reasoning_digest(message)]
        return NewTurn(
            session=session.id,
            name=job.call.turn_name,
            parent=None if parent is None else parent.turn,
            delivered=Delivery.UNDER_WAY,
            history=append(asked.chains[-1], message, rules),
            request=asked.chains[-1],
            body=job.attempt.digest,
            idempotency_key=job.attempt.idempotency_key,
            start=start,
            length=len(job.request.messages) + 1,
            matching=Matching(
                rules=rules.name,
                reasonings=tuple((start + index, each) for index, each in enumerate(reasonings) if each is not None),
                call_ids=tuple(call_ids(own)),
                branch_reason=prompted.reason,
                lineage=job.lineage,
            ),
            messages=messages,
            tools=_tools(job.request) if parent is None else None,
            output=message,
            prompt_ids=prompt.ids[covered:],
            prompt_tokens=len(prompt.ids),
            output_ids=evidence.output_ids,
            logprobs=evidence.logprobs,
            versions=[(span.version, span.end - span.start) for span in evidence.spans or ()],
            finish_reason=_finish_reason(evidence, message),
            mixed_cache=_is_mixed(evidence, submission),
            run=submission.run,
            extras=_extras(
                job, prompt, evidence, reply, max_tokens=self.generator.budget(job.request, len(prompt.ids))
            ),
            created_at=job.began,
        )

    def _count(self, job: TurnJob, made: Turn, prompted: Prompted, *, first: bool) -> None:
        metrics, prompt = self.metrics, prompted.prompt
        reason = made.branch_reason
        kind = EXTENDING if made.parent is not None and reason is None else FIRST if first else BRANCH
        if kind != FIRST and any(message["role"] == "assistant" for message in job.request.messages):
            metrics.follow_ups.labels(kind).inc()
        if reason is not None:
            metrics.branches.labels(reason.field).inc()
            message = -1 if reason.message is None else reason.message
            emit(TurnBranched(**job.names, message=message, field=reason.field))
        metrics.committed(
            kind,
            prompt_tokens=made.prompt_tokens,
            completion_tokens=len(made.output_ids),
            seconds=job.call.phases.seconds(),
        )
        metrics.image_placeholders.inc(made.extras.placeholders)
        metrics.special_tokens_in_text.inc(made.extras.special_tokens_in_text)
        passed = int(prompt.parent is not None)
        metrics.prefix_checks.labels("passed").inc(passed)
        metrics.prefix_checks.labels("failed").inc(prompt.checked - passed)


def _prompt_job(job: TurnJob) -> PromptJob:
    held = job.call.held
    return PromptJob(
        session=job.session,
        request=job.request,
        lineage=job.lineage,
        nbytes=0 if held is None else held.nbytes,
        conversation=job.conversation if job.request.is_whole else None,
        begun=partial(job.call.phases.begin, TOKENISE_IN),
    )


def _check_limits(session: Session) -> None:
    turns, tokens = session.limits.get("turns"), session.limits.get("tokens")
    if turns is not None and session.turns + len(session.calls) >= turns:
        raise TurnLimitReached(f"Rollout stopped: this session's limit is {turns} turns.")
    if tokens is not None and session.tokens >= tokens:
        raise TokenLimitReached(f"Rollout stopped: this session's limit is {tokens} tokens.")


def _tools(request: TurnRequest) -> dict[str, Any] | None:
    """What the prompt was rendered with beside the messages; children share it."""
    tools, kwargs = request.template.tools, request.template.kwargs
    return {"tools": tools, "template_kwargs": kwargs} if tools or kwargs else None


def _finish_reason(evidence: Evidence, message: Message) -> FinishReason:
    """A stop behind tool calls is named for them."""
    if evidence.finish_reason == "length":
        return "length"
    return "tool_calls" if "tool_calls" in message else "stop"


def _extras(job: TurnJob, prompt: Prompt, evidence: Evidence, reply: Reply, *, max_tokens: int) -> Extras:
    return Extras(
        sampling=sampled(job.request, max_tokens=max_tokens),
        constrained=_grammar(job),
        biased_by=biases_of(job.request.sampling) or None,
        cached_tokens=evidence.cached_tokens or None,
        top_logprobs=evidence.top_logprobs,
        stripped=list(job.request.stripped) or None,
        placeholders=job.request.placeholders,
        special_tokens_in_text=prompt.special_tokens_in_text,
        stop_sequence=_stop_string(job, evidence),
        parts=reply.parts,
        own_messages=job.request.own_messages,
        kept=job.request.kept(reply.message),
        timing=job.call.phases.before_commit(),
    )


def _stop_string(job: TurnJob, evidence: Evidence) -> str | None:
    """The stop string that ended a reply. What a pattern of `stop_regex` matched is the model's text, and stays."""
    matched = evidence.matched
    return matched if isinstance(matched, str) and matched in job.request.stops else None


def _without_stop_token(job: TurnJob, evidence: Evidence, reader: ReplyReader) -> Sequence[int]:
    """The ids of a reply whose text is the answer: without a stop token of the request's own that ended it. One that is
    a mark of the chat format says what the text before it is."""
    ids, matched = evidence.output_ids, evidence.matched
    own = job.request.sampling.get("stop_token_ids", ())
    ended_by_it = matched in own and ids[-1] == matched and matched not in reader.alphabet.chars
    return ids[:-1] if ended_by_it else ids


def _grammar(job: TurnJob) -> str | None:
    if job.request.calls is None or job.call.tools_unconstrained:
        return grammar_of(job.request.sampling)
    return STRUCTURAL_TAG


def _is_mixed(evidence: Evidence, submission: Submission) -> bool:
    """Whether tokens stand on a cache of older weights: the version changed under the engine's running requests."""
    return submission.mixed_cache or (submission.held_in_place and len(evidence.spans or ()) > 1)
