"""A turn's reply from the engines: what is asked of them, under which grammar, and how many tokens they may make."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.capture.engine_bounds import bounded
from rolloutfleet_proxy.capture.job import TurnJob
from rolloutfleet_proxy.capture.prompting import Prompted
from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.errors import ContextExceeded, EvidenceRefused, UnsupportedParameter
from rolloutfleet_proxy.engine.client import Engine, OnChunk
from rolloutfleet_proxy.engine.errors import GrammarRefused, StructuralTags
from rolloutfleet_proxy.engine.evidence import Evidence, Refused
from rolloutfleet_proxy.engine.generation import GRAMMARS, JSON_SCHEMA, STRUCTURAL_TAG, Generation
from rolloutfleet_proxy.engine.pause_gate import PauseGate, Submission
from rolloutfleet_proxy.engine.request import GenerateRequest, passed_on
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.telemetry.metrics import Metrics
from rolloutfleet_proxy.tokens.render import ChatFormat

UNKNOWN_CONTEXT_BUDGET = 4096
"""Tokens of output where neither the request nor the model says how many."""


class Generator(Struct, frozen=True, kw_only=True):
    """Has turns generated."""

    engine: Engine
    gate: PauseGate
    chat_format: ChatFormat
    structural_tags: StructuralTags
    metrics: Metrics
    settings: SettingsInForce

    async def generate(
        self, job: TurnJob, prompted: Prompted, submission: Submission, on_chunk: OnChunk | None
    ) -> Evidence:
        """Raises ContextExceeded, InvalidParameter for a grammar or a stop pattern out of bounds, EvidenceRefused for a
        reply that is none, and as `Generation.run` does."""
        failpoints.reach(failpoints.BEFORE_ENGINE)
        request = job.request
        budget = self.budget(request, len(prompted.prompt.ids))
        asked = GenerateRequest(
            rid=job.call.turn_name,
            routing_key=job.session.name,
            prompt_json=prompted.prompt_json,
            prompt_tokens=len(prompted.prompt.ids),
            max_new_tokens=budget,
            sampling=bounded(
                self._sampling(request),
                tokens=budget,
                longest_token=self.chat_format.vocabulary.longest_token,
                called=request.called,
            ),
            vocab_size=self.chat_format.vocabulary_size,
            top_logprobs=request.top_logprobs,
            with_logprobs=on_chunk is not None and request.logprobs,
            headers=passed_on(job.headers),
        )
        generation = Generation(
            engine=self.engine,
            weights=self.gate,
            submission=submission,
            on_chunk=on_chunk,
            cache_by_version=self.settings.current.weights.cache == "byVersion",
            max_rounds=self.settings.current.abort_rounds,
            on_round=self.metrics.generations.inc,
            on_failure=lambda code: self.metrics.engine_failures.labels(code).inc(),
            on_outage=job.call.set_unreachable,
        )
        try:
            evidence = await self._within_context(generation, asked, job, prompted)
        except Refused as refused:
            self.metrics.refused.labels(refused.reason).inc()
            raise EvidenceRefused(refused.reason, refused.message) from None
        failpoints.reach(failpoints.AFTER_ENGINE)
        if evidence.version_differs:
            self.metrics.version_differences.inc()
        return evidence

    async def _within_context(
        self, generation: Generation, asked: GenerateRequest, job: TurnJob, prompted: Prompted
    ) -> Evidence:
        """Engines may have been started with less room than the model's files say, and tell so when they refuse: a
        limit that is an upper bound is cut to what they have, and asked for again."""
        try:
            return await self._run(generation, asked, job, prompted)
        except ContextExceeded as exceeded:
            left = exceeded.room
            if not _is_upper_bound(job.request) or left is None or not 0 < left < asked.max_new_tokens:
                raise
        # With an id of its own: an engine may not have forgotten the one that it refused.
        cut = replace(asked, rid=f"{asked.rid}.cut", max_new_tokens=left)
        return await self._run(generation, cut, job, prompted)

    async def _run(self, generation: Generation, asked: GenerateRequest, job: TurnJob, prompted: Prompted) -> Evidence:
        """Under the grammar of the calls that are wanted, or under the request's own, with a thought before it where
        the prompt leaves one: as far as the engines take such grammars."""
        grammar, prompt_ids, calls = self.chat_format.grammar, prompted.prompt.ids, job.request.calls
        if calls is not None:
            tag = grammar.of_calls(prompt_ids, calls.wanted, json_schema=asked.sampling.get(JSON_SCHEMA))
            if evidence := await self._tagged(generation, asked, tag):
                return evidence
            if self.settings.current.compatibility.requests == "strict":
                raise UnsupportedParameter(calls.wishes[0], "the engines accept no grammar that could enforce it.")
            job.call.tools_unconstrained = True
            self.metrics.ignored(calls.wishes)
            # With an id of its own, here and below: an engine may not have forgotten the one that it refused.
            asked = replace(asked, rid=f"{asked.rid}.wish")
        if thinking_first := grammar.thinking_first(prompt_ids, asked.sampling):
            if evidence := await self._tagged(generation, asked, thinking_first):
                return evidence
            asked = replace(asked, rid=f"{asked.rid}.own")
        return await generation.run(asked)

    async def _tagged(self, generation: Generation, asked: GenerateRequest, tag: str) -> Evidence | None:
        """Under a structural tag; None where the engines take none, or not this one."""
        if not self.structural_tags.taken():
            return None
        sampling = {name: value for name, value in asked.sampling.items() if name not in GRAMMARS}
        try:
            evidence = await generation.run(replace(asked, sampling={**sampling, STRUCTURAL_TAG: tag}))
        except GrammarRefused as refusal:
            self.structural_tags.refused(refusal)
            return None
        self.structural_tags.answered()
        return evidence

    def budget(self, request: TurnRequest, prompt_tokens: int) -> int:
        """Tokens that the engine may make. Raises ContextExceeded where prompt and budget exceed the context."""
        context, limit = self.chat_format.context_length, request.max_tokens
        if context is None:
            return limit or UNKNOWN_CONTEXT_BUDGET
        left = context - prompt_tokens
        asked = None if _is_upper_bound(request) else limit
        if left < (asked or 1):
            raise ContextExceeded(
                f"This model's maximum context length is {context} tokens: the messages take {prompt_tokens}, and "
                f"{asked or 'at least 1'} {'are' if asked else 'is'} asked for.",
                prompt_tokens=prompt_tokens,
                context_length=context,
            )
        return min(limit or left, left)

    def _sampling(self, request: TurnRequest) -> dict[str, Any]:
        """The request's, with the chat format's stop tokens: the engine is given ids, and knows of no format."""
        own = self.chat_format.stop_token_ids
        given = request.sampling.get("stop_token_ids", ())
        return {**request.sampling, "stop_token_ids": [*own, *given], "skip_special_tokens": False}


def _is_upper_bound(request: TurnRequest) -> bool:
    return request.max_tokens_is_upper_bound or request.max_tokens_is_trainers
