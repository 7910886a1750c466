"""A turn, step by step, from a request to a committed row.

1. The session was found by `chat_route`; here it must have room for a turn.
2. Its tree says which turns the request's messages continue.
3. The prompt's ids are such a turn's and the new messages', checked token by token; else a new branch's.
4. The engine generates, in as many rounds as pauses make of it.
5. What came back is checked as evidence, and read as a message.
6. It is committed. Only then does the answer leave.
"""

import asyncio
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec.structs import replace

from rolloutfleet.errors import CANCELLED, INTERNAL
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.capture.retries import Attempt
from rolloutfleet_proxy.capture.turn_stream import TurnStream
from rolloutfleet_proxy.chat.answer import CACHED_TOKENS, TOP_LOGPROBS, finish_reason
from rolloutfleet_proxy.chat.model_names import check_served
from rolloutfleet_proxy.chat.request import ChatRequest
from rolloutfleet_proxy.domain.errors import (
    ContextExceeded,
    DomainError,
    EvidenceRefused,
    InvalidParameter,
    TemporaryFailure,
    TokenLimitReached,
    TurnLimitReached,
    UnsupportedParameter,
)
from rolloutfleet_proxy.engines.client import GenerateRequest, OnChunk, ids_json, joined_json, passed_on
from rolloutfleet_proxy.engines.evidence import Evidence, Refused
from rolloutfleet_proxy.engines.generation import STRUCTURAL_TAG, Generation, biases_of, grammar_of
from rolloutfleet_proxy.engines.grammar_refusals import GrammarRefused
from rolloutfleet_proxy.ids import random_hex
from rolloutfleet_proxy.memory.in_flight import Held
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.refusals import ended, not_written
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.sessions import Session
from rolloutfleet_proxy.store.writer import StoreBroken, StoreFull
from rolloutfleet_proxy.telemetry.events import TurnBranched, TurnEndedUnwaited, emit
from rolloutfleet_proxy.telemetry.metrics import BRANCH, COMMITTED, EXTENDING, FIRST
from rolloutfleet_proxy.telemetry.phases import COMMIT, DONE, ENGINE, PAUSE, QUEUE, TOKENISE_IN, TOKENISE_OUT
from rolloutfleet_proxy.telemetry.request_ids import REQUEST_ID
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.reading import Parsed
from rolloutfleet_proxy.tokens.render import Candidate, Prompt
from rolloutfleet_proxy.tokens.render_process import RenderProcessFailed
from rolloutfleet_proxy.turns.branching import TOKENS, Asked, BranchReason, load_reason, starts_branch
from rolloutfleet_proxy.turns.matching import Matching
from rolloutfleet_proxy.turns.messages import (
    Conversation,
    Message,
    append,
    call_ids,
    conversation,
    reasoning_digest,
    renamed,
)
from rolloutfleet_proxy.turns.paths import Path
from rolloutfleet_proxy.turns.rows import (
    BIASED_BY,
    CONSTRAINED,
    Brief,
    NewTurn,
    SessionOver,
    Turn,
    commit_turn,
    committed,
    load_ids,
)
from rolloutfleet_proxy.turns.tree import Node
from rolloutfleet_proxy.weights.weights import Submission

MOST_CANDIDATES = 8
"""Earlier turns whose tokens a prompt is compared with at the most, deepest first."""

LARGE_REQUEST = 2 << 20
"""Bytes from which on a request is read and digested away from the event loop: at 64 MiB that takes 0.2 to 0.5 s."""

UNKNOWN_CONTEXT_BUDGET = 4096
"""Tokens of output where neither the request nor the model says how many."""


def begin(
    proxy: Proxy, session: Session, request: ChatRequest, attempt: Attempt, headers: dict[str, str], held: Held
) -> Call:
    """Start a turn. Raises TurnLimitReached or TokenLimitReached where the session's limits leave no room for it,
    ModelNotFound, and DiskFull where the disk has too little room left to keep it."""
    if request.model is not None:
        check_served(request.model, proxy.settings)
    _check_limits(session)
    try:
        proxy.admission.check_disk()
    except StoreFull as error:
        raise not_written(error) from None
    name = f"turn-{random_hex()}"

    async def work(call: Call) -> Turn:
        making = _Making(proxy, session, request, attempt, headers, name, time.time(), call)
        fate = INTERNAL
        with proxy.metrics.call_in_flight():
            try:
                made = await making.run()
                fate = COMMITTED
                return made
            except DomainError as error:
                fate = error.code
                raise
            except asyncio.CancelledError:
                fate = call.ended_by.code if call.ended_by is not None else CANCELLED
                raise
            finally:
                call.phases.stop()
                proxy.metrics.turns_ended.labels(fate).inc()
                if fate != COMMITTED:
                    proxy.note_use(session)
                if call.abandoned:
                    _tell_nobody(proxy, session, name, headers, fate)

    return session.calls.start(
        turn_name=name,
        body=attempt.body,
        idempotency_key=attempt.idempotency_key,
        streams=request.stream,
        work=work,
        held=held.share(),
    )


@dataclass(frozen=True, slots=True)
class _Making:
    """One call's way through the steps."""

    proxy: Proxy
    session: Session
    request: ChatRequest
    attempt: Attempt
    headers: dict[str, str]
    name: str
    began: float
    call: Call

    async def run(self) -> Turn:
        phases = self.call.phases
        phases.begin(QUEUE)
        asked = await self._asked()
        nodes = self.session.tree.matches(asked)[:MOST_CANDIDATES]
        path = await self.proxy.paths.get(self.session.id, nodes[0].turn) if nodes else None
        deepest = self._continued(asked, nodes[0] if nodes else None)
        prompt = await self._prompt(deepest.messages, nodes, path)
        reason = await self._branch_reason(deepest, prompt)
        phases.begin(PAUSE)
        phases.prompt_tokens = len(prompt.ids)
        prompt_json = _prompt_json(prompt, path)
        parent = None if prompt.parent is None else nodes[prompt.parent]
        stream = self._stream(prompt) if self.request.stream else None
        async with self.proxy.weights.submission() as submission:
            phases.begin(ENGINE)
            evidence = await self._generate(prompt, prompt_json, stream, submission)
        phases.begin(TOKENISE_OUT)
        parsed = await self._parse(prompt, evidence)
        if stream is not None:
            stream.finish(parsed.message)
        continued = deepest if parent is deepest.node else self._continued(asked, parent)
        new = self._row(asked, prompt, continued, reason, evidence, parsed, submission)
        made = await self._commit(new, prompt, Path(prompt.ids, new.output_ids, prompt_json, evidence.ids_json))
        if stream is not None:
            stream.end(made)
        return made

    async def _asked(self) -> Conversation:
        request = self.request
        digest = partial(conversation, request.messages, request.template, self.proxy.chat_format.rules)
        if self.call.held is None or self.call.held.nbytes < LARGE_REQUEST:
            return digest()
        self._refuse_hopeless()
        return await asyncio.get_running_loop().run_in_executor(self.proxy.large_bodies, digest)

    def _refuse_hopeless(self) -> None:
        """Raises ContextExceeded for what no tokenizer could fit into the context: to encode 60 MB takes gigabytes."""
        formatted = self.proxy.chat_format
        letters = sum(len(content) for each in self.request.messages if isinstance(content := each.get("content"), str))
        least = letters // formatted.vocabulary.longest_token
        if formatted.context_length is not None and least > formatted.context_length:
            raise ContextExceeded(
                f"This model's maximum context length is {formatted.context_length} tokens: the messages have "
                f"{letters} characters, which are {least} tokens at the least."
            )

    def _continued(self, asked: Conversation, node: Node | None) -> "_Continued":
        known = [] if node is None or not asked.call_ids else self.session.tree.call_ids(node)
        same = known == asked.call_ids[: len(known)]
        return _Continued(node, known, self.request.messages if same else renamed(self.request.messages, known))

    async def _prompt(self, messages: list[Message], nodes: Sequence[Node], path: Path | None) -> Prompt:
        """`path` is the deepest turn's, most likely the parent's; those of others are read if it comes to that."""
        candidates = [Candidate(node.length, partial(self._load, node.turn)) for node in nodes]
        if path is not None:
            candidates[0] = Candidate(nodes[0].length, lambda: path[:2])
        try:
            return await self.proxy.tokenizing.prompt(
                messages,
                self.request.template,
                candidates,
                begun=partial(self.call.phases.begin, TOKENISE_IN),
            )
        except Unrenderable as error:
            raise InvalidParameter(error.param, f"{error}.") from None
        except RenderProcessFailed as error:
            raise TemporaryFailure(f"{error}.") from None
        except LookupError:
            raise ended(self.session) from None

    async def _branch_reason(self, deepest: "_Continued", prompt: Prompt) -> BranchReason | None:
        """Which difference keeps the request from extending a turn by messages; else, whether tokens do."""
        start = deepest.length
        others = self.session.tree.children(None if deepest.node is None else deepest.node.turn)
        found = None
        if others and starts_branch(self.request.messages, start):
            following = Asked(
                deepest.messages,
                self.request.template,
                self.proxy.chat_format.rules,
                start,
                deepest.call_ids,
            )
            found = await self.proxy.reader.run(
                partial(load_reason, session=self.session.id, others=others, asked=following)
            )
        if found is None and prompt.branch_reason is not None:
            return BranchReason(start - 1, TOKENS)
        return found

    def _load(self, number: int) -> tuple["array[int]", "array[int]"]:
        """Called on the tokenizer's thread, which may wait for a read."""
        return self.proxy.reader.run_blocking(lambda connection: load_ids(connection, self.session.id, number))

    def _stream(self, prompt: Prompt) -> TurnStream:
        events = self.proxy.answers.stream(self.name, self.began, self.request)
        parser = self.proxy.tokenizing.deltas(
            prompt.ids,
            self.request.template,
            seed=self.name.encode(),
            stops=self.request.stops,
        )
        return TurnStream(
            self.call,
            self.proxy.answers,
            events,
            parser,
            vocabulary_size=self.proxy.chat_format.vocabulary_size,
            with_logprobs=self.request.logprobs,
        )

    async def _generate(
        self, prompt: Prompt, prompt_json: bytes, stream: TurnStream | None, submission: Submission
    ) -> Evidence:
        failpoints.reach(failpoints.BEFORE_ENGINE)
        generation = Generation(
            engine=self.proxy.engine,
            weights=self.proxy.weights,
            submission=submission,
            max_rounds=self.proxy.settings.abort_rounds,
            on_round=self.proxy.metrics.generations.inc,
            on_failure=lambda code: self.proxy.metrics.engine_failures.labels(code).inc(),
        )
        asked = GenerateRequest(
            rid=self.name,
            routing_key=self.session.name,
            prompt_json=prompt_json,
            prompt_tokens=len(prompt.ids),
            max_new_tokens=self._budget(len(prompt.ids)),
            sampling=self._sampling(),
            vocab_size=self.proxy.chat_format.vocabulary_size,
            top_logprobs=self.request.top_logprobs,
            with_logprobs=stream is not None and self.request.logprobs,
            headers=passed_on(self.headers),
        )
        try:
            evidence = await self._run(generation, asked, prompt, None if stream is None else stream.feed)
        except Refused as refused:
            self.proxy.metrics.refused.labels(refused.reason).inc()
            raise EvidenceRefused(refused.reason, refused.message) from None
        failpoints.reach(failpoints.AFTER_ENGINE)
        if evidence.version_differs:
            self.proxy.metrics.version_differences.inc()
        return evidence

    async def _run(
        self, generation: Generation, asked: GenerateRequest, prompt: Prompt, on_chunk: OnChunk | None
    ) -> Evidence:
        """Under the grammar of the calls that are wanted, as far as the engines take one."""
        calls, grammars = self.request.calls, self.proxy.call_grammars
        if calls is None:
            return await generation.run(asked, on_chunk)
        if grammars.taken():
            grammar = self.proxy.chat_format.call_grammar(prompt.ids, calls.wanted)
            try:
                evidence = await generation.run(_sampled(asked, {STRUCTURAL_TAG: grammar}), on_chunk)
            except GrammarRefused as refusal:
                grammars.refused(refusal)
            else:
                grammars.answered()
                return evidence
        if self.proxy.settings.compatibility.requests == "strict":
            raise UnsupportedParameter(calls.wishes[0], "the engines take no grammar that could hold a reply to it.")
        self.call.tools_unconstrained = True
        self.proxy.metrics.fields_ignored.count(calls.wishes)
        # With an id of its own: an engine may not have forgotten the one that it refused.
        return await generation.run(replace(_sampled(asked, calls.fallback), rid=f"{asked.rid}.wish"), on_chunk)

    def _budget(self, prompt_tokens: int) -> int:
        """Tokens that the engine may make. Raises ContextExceeded where prompt and budget exceed the context."""
        context = self.proxy.chat_format.context_length
        asked = self.request.max_tokens
        if context is None:
            return asked or UNKNOWN_CONTEXT_BUDGET
        if prompt_tokens + (asked or 1) > context:
            raise ContextExceeded(
                f"This model's maximum context length is {context} tokens: the messages take {prompt_tokens}, and "
                f"{asked or 'at least 1'} {'are' if asked else 'is'} asked for."
            )
        return asked or context - prompt_tokens

    def _sampling(self) -> dict[str, Any]:
        """The request's, with the chat format's stop tokens: the engine is given ids, and knows of no format."""
        own = self.proxy.chat_format.stop_token_ids
        given = self.request.sampling.get("stop_token_ids", ())
        return {**self.request.sampling, "stop_token_ids": [*own, *given], "skip_special_tokens": False}

    async def _parse(self, prompt: Prompt, evidence: Evidence) -> Parsed:
        return await self.proxy.tokenizing.parse(
            prompt.ids,
            evidence.output_ids,
            self.request.template,
            seed=self.name.encode(),
            # What a pattern of `stop_regex` matched is the model's text, and stays.
            stop=evidence.matched if evidence.matched in self.request.stops else None,
        )

    def _row(
        self,
        asked: Conversation,
        prompt: Prompt,
        continued: "_Continued",
        reason: BranchReason | None,
        evidence: Evidence,
        parsed: Parsed,
        submission: Submission,
    ) -> NewTurn:
        start, parent = continued.length, continued.node
        covered = 0 if parent is None else self.session.briefs[parent.turn].tokens
        length = len(self.request.messages) + 1
        messages = continued.messages[start:]
        return NewTurn(
            session=self.session.id,
            name=self.name,
            parent=None if parent is None else parent.turn,
            delivered=not self.call.abandoned,
            history=append(asked.chains[-1], parsed.message, self.proxy.chat_format.rules),
            request=asked.chains[-1],
            body=self.attempt.body,
            idempotency_key=self.attempt.idempotency_key,
            start=start,
            length=length,
            matching=self._matching(asked, start, [*messages, parsed.message], reason),
            messages=messages,
            tools=self._tools() if parent is None else None,
            output=parsed.message,
            prompt_ids=prompt.ids[covered:],
            prompt_tokens=len(prompt.ids),
            output_ids=evidence.output_ids,
            logprobs=evidence.logprobs,
            versions=[(span.version, span.end - span.start) for span in evidence.spans or ()],
            finish_reason=finish_reason(evidence.finish_reason, has_tool_calls="tool_calls" in parsed.message),
            mixed_cache=_is_mixed(evidence, submission),
            run=submission.run,
            extras=self._extras(evidence),
            created_at=self.began,
        )

    def _matching(self, asked: Conversation, start: int, own: list[Message], reason: BranchReason | None) -> Matching:
        reasonings = [*asked.reasonings[start:], reasoning_digest(own[-1])]
        return Matching(
            rules=self.proxy.chat_format.rules.name,
            reasonings=tuple((start + index, digest) for index, digest in enumerate(reasonings) if digest is not None),
            call_ids=tuple(call_ids(own)),
            branch_reason=reason,
        )

    def _tools(self) -> dict[str, Any] | None:
        """What the prompt was rendered with beside the messages; children share it."""
        tools, kwargs = self.request.template.tools, self.request.template.kwargs
        return {"tools": tools, "template_kwargs": kwargs} if tools or kwargs else None

    def _extras(self, evidence: Evidence) -> dict[str, Any] | None:
        extras: dict[str, Any] = {}
        grammar = self._grammar()
        biases = biases_of(self.request.sampling)
        if grammar is not None:
            extras[CONSTRAINED] = grammar
        if biases:
            extras[BIASED_BY] = biases
        if evidence.cached_tokens:
            extras[CACHED_TOKENS] = evidence.cached_tokens
        if evidence.top_logprobs is not None:
            extras[TOP_LOGPROBS] = evidence.top_logprobs
        return extras or None

    def _grammar(self) -> str | None:
        calls = self.request.calls
        if calls is None:
            return grammar_of(self.request.sampling)
        return grammar_of(calls.fallback) if self.call.tools_unconstrained else STRUCTURAL_TAG

    async def _commit(self, new: NewTurn, prompt: Prompt, path: Path) -> Turn:
        """From here on only the store decides: a caller who leaves, or a session that is closed, changes nothing."""
        self.call.committing = True
        self.call.phases.begin(COMMIT)
        try:
            number = await self.proxy.writer.run(partial(commit_turn, turn=new))
        except SessionOver:
            raise ended(self.session) from None
        except (StoreFull, StoreBroken) as error:
            self.proxy.admission.note_full()
            raise not_written(error) from None
        self.call.phases.begin(DONE)
        made = committed(new, number)
        first = not self.session.turns
        self.session.add(_node(made, new), Brief.of(new), new.new_tokens)
        self.proxy.sessions.committed(self.session)
        self.proxy.paths.keep(self.session.id, number, path)
        self._count(made, prompt, first=first)
        failpoints.reach(failpoints.BEFORE_ANSWER)
        return made

    def _count(self, made: Turn, prompt: Prompt, *, first: bool) -> None:
        metrics = self.proxy.metrics
        reason = made.branch_reason
        kind = EXTENDING if made.parent is not None and reason is None else FIRST if first else BRANCH
        if kind != FIRST and any(message["role"] == "assistant" for message in self.request.messages):
            metrics.follow_ups.labels(kind).inc()
        if reason is not None:
            metrics.branches.labels(reason.field).inc()
            emit(_branched(self.headers, self.session, made, reason))
        metrics.committed(
            kind,
            prompt_tokens=made.prompt_tokens,
            completion_tokens=len(made.output_ids),
            seconds=self.call.phases.seconds(),
        )
        metrics.prefix_checks.labels("passed").inc(prompt.passed)
        metrics.prefix_checks.labels("failed").inc(prompt.checked - prompt.passed)


@dataclass(frozen=True, slots=True)
class _Continued:
    """The request as it continues a turn, or none. Made once: to know a turn's calls is to look at all before it."""

    node: Node | None
    call_ids: list[str | None]
    """Of the tool calls up to the turn's end."""
    messages: list[Message]
    """The request's, with these ids: some formats write them."""

    @property
    def length(self) -> int:
        """Messages that the turn covers."""
        return 0 if self.node is None else self.node.length


def _branched(headers: dict[str, str], session: Session, made: Turn, reason: BranchReason) -> TurnBranched:
    return TurnBranched(
        request_id=headers.get(REQUEST_ID, ""),
        session_id=session.name,
        turn_id=made.name,
        message=-1 if reason.message is None else reason.message,
        field=reason.field,
    )


def _tell_nobody(proxy: Proxy, session: Session, name: str, headers: dict[str, str], fate: str) -> None:
    """What became of a turn whose caller has gone: no call's line will say it."""
    proxy.metrics.turns_unwaited.labels(fate).inc()
    emit(TurnEndedUnwaited(request_id=headers.get(REQUEST_ID, ""), session_id=session.name, turn_id=name, outcome=fate))


def _check_limits(session: Session) -> None:
    turns, tokens = session.limits.get("turns"), session.limits.get("tokens")
    if turns is not None and session.turns + len(session.calls) >= turns:
        raise TurnLimitReached(f"Rollout stopped: this session's limit is {turns} turns.")
    if tokens is not None and session.tokens >= tokens:
        raise TokenLimitReached(f"Rollout stopped: this session's limit is {tokens} tokens.")


def _sampled(asked: GenerateRequest, grammar: Mapping[str, Any]) -> GenerateRequest:
    return replace(asked, sampling={**asked.sampling, **grammar})


def _prompt_json(prompt: Prompt, path: Path | None) -> bytes:
    """The prompt for the engine. Where the deepest turn is the parent only what is new must be written."""
    if path is None or prompt.parent != 0:
        return ids_json(prompt.ids)
    before = len(path.prompt_ids) + len(path.output_ids)
    output_json = path.output_json or ids_json(path.output_ids)
    return joined_json(path.prompt_json, output_json, ids_json(prompt.ids[before:]))


def _node(made: Turn, new: NewTurn) -> Node:
    return Node(
        turn=made.number,
        parent=new.parent,
        start=new.start,
        length=new.length,
        history=new.history,
        reasonings=new.matching.reasonings,
        call_ids=new.matching.call_ids,
    )


def _is_mixed(evidence: Evidence, submission: Submission) -> bool:
    """Whether tokens stand on a cache of older weights: the version changed under the engine's running requests."""
    return submission.mixed_cache or (submission.held_in_place and len(evidence.spans or ()) > 1)
