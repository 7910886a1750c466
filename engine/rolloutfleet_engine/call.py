"""One request inside the engine, from its arrival to its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import numpy

from rolloutfleet_engine.ending import FinishReason
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.generation import Generation
from rolloutfleet_engine.model import Model
from rolloutfleet_engine.requests import Work
from rolloutfleet_engine.writer import Draft, Writer

LogprobEntry = tuple[float | None, int, str | None]

NON_STREAM_REPORT = 50
"""SGLang's scheduler reports the tokens of a call that isn't streamed this many at a time until it finishes."""


class Call:
    """A request with what has been made for it. One task waits on it; `wake` ends the wait."""

    def __init__(self, *, rid: str, fault: Fault | None, routing_key: str | None, arrived: float) -> None:
        self.rid = rid
        self.fault = fault
        self.routing_key = routing_key
        self.traces: dict[str, str] = {}
        self.arrived = arrived
        self.left = False
        self.abort_sent = False
        self.abort_on_continue = False
        self.aborted = False
        self.work: Work | None = None
        self.generation: Generation | None = None
        self.ids: Sequence[int] = ()
        self.finish: FinishReason = {}
        self.logprobs: list[float] = []
        self._draft: Draft | None = None
        self._writer: Writer | None = None
        self._waiter: asyncio.Future[None] | None = None

    @property
    def generating(self) -> bool:
        return self.generation is not None

    def begin(self, *, work: Work, writer: Writer, draft: Draft, generation: Generation) -> None:
        self.work, self._writer, self._draft, self.generation = work, writer, draft, generation

    def settle(self, now: float) -> int:
        """Counts the tokens made until `now`, under the weights in force since the last count."""
        generation, writer, draft = self.generation, self._writer, self._draft
        if generation is None or writer is None or draft is None:
            return 0
        made = generation.advance(now)
        if made > len(self.logprobs):
            new = writer.logprobs(draft, version=generation.version, count=made)
            self.logprobs.extend(new[len(self.logprobs) :])
        return made

    def end(self, finish: FinishReason, *, now: float) -> None:
        """Ends the call with what is made, unless it was all made already."""
        if self.generation is None or self.settle(now) == self.generation.total:
            return
        self.generation.end_now(now)
        self.finish = finish
        self.aborted = True
        self.wake()

    def end_queued(self, *, now: float) -> None:
        """Ends a retracted call: SGLang answers from its queue, with the tokens that the scheduler had reported."""
        finish = {"type": "abort", "message": "Abort in waiting queue"}
        if self.generation is None or self.work is None:
            return
        self.end(finish, now=now)
        if self.aborted and not self.work.stream:
            shown = self.generation.made - self.generation.made % NON_STREAM_REPORT
            self.generation.made = self.generation.total = shown
            del self.logprobs[shown:]

    def leave(self) -> None:
        self.left = True
        self.wake()

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self, until: float | None) -> None:
        """Waits until the loop's time `until`, or for ever, or for `wake`."""
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_at(until, self.wake) if until is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    async def wait_while(self, condition: Callable[[], bool]) -> None:
        while condition() and not self.left:
            await self.wait(None)

    async def reach(self, count: int, clock: Callable[[], float]) -> int:
        """Waits for token number `count`; returns how many are made, fewer where the call ended before."""
        generation = self.generation
        assert generation is not None
        while (made := self.settle(clock())) < min(count, generation.total) and not self.left:
            await self.wait(generation.time_of(count))
        return made


def logprob_entries(
    ids: Sequence[int], logprobs: Sequence[float | None], *, model: Model, with_text: bool
) -> list[LogprobEntry]:
    """`[log-probability, id, text]` a token, the text null unless asked for."""
    if with_text:
        texts = [model.decode([token_id], skip_special_tokens=False) for token_id in ids]
        return list(zip(logprobs, ids, texts, strict=True))
    return [(value, i, None) for value, i in zip(logprobs, ids, strict=True)]


def top_entries(entry: LogprobEntry, *, count: int, vocabulary_size: int) -> list[LogprobEntry]:
    """`count` candidates at one place, the sampled one first, each less likely than the one before."""
    value, token_id, text = entry
    others = [
        (float(numpy.float32((value or 0.0) - 0.75 * place)), (token_id + 97 * place) % vocabulary_size, None)
        for place in range(1, count)
    ]
    return [(value, token_id, text), *others][:count]


def reply_body(
    call: Call, *, count: int, model: Model, version: str, text: str, times: dict[str, float], final: bool
) -> dict[str, Any]:
    """An answer of `/generate`, in the fields and the order of SGLang 0.5.23 (`srt/managers/tokenizer_manager.py`).

    `version`: the engine's own now; `times`: what the answer says of times. Streams carry all tokens so far in every
    event.
    """
    work, generation = call.work, call.generation
    assert work is not None and generation is not None
    ids = list(call.ids[:count])
    queued = final and call.finish.get("message") == "Abort in waiting queue"
    meta: dict[str, Any] = {"id": call.rid, "finish_reason": call.finish if final else None}
    if not queued:
        meta["prompt_tokens"] = len(work.prompt)
    meta["weight_version"] = version
    if not queued:
        meta["num_retractions"] = generation.retractions
    if work.logprobs:
        meta |= logprob_fields(call, ids, work=work, model=model)
    if not queued:
        meta["reasoning_tokens"] = 0
    meta["completion_tokens"] = len(ids)
    if not queued:
        meta["cached_tokens"] = 0
    if final:
        spans = generation.spans()
        meta["weight_versions"] = [{"version": s.version, "start": s.start, "end": s.end} for s in spans]
        meta["weight_version"] = spans[-1].version
    if not queued:
        meta |= {"cached_tokens_details": None, "dp_rank": None}
    body = {"text": text, "output_ids": ids, "meta_info": meta | times}
    return body | {"prompt_token_ids": work.prompt} if work.return_prompt else body


def aborted_body(
    call: Call, work: Work, finish: FinishReason, *, version: str, times: dict[str, float]
) -> dict[str, Any]:
    """The answer to a request that SGLang aborts in its queue: a token without a log-probability, behind a prompt that
    it has cut to one token."""
    meta: dict[str, Any] = {
        "id": call.rid,
        "finish_reason": finish,
        "prompt_tokens": 1,
        "weight_version": version,
        "num_retractions": 0,
    }
    if work.logprobs:
        meta |= {"input_token_logprobs": [], "output_token_logprobs": [], "output_token_logprobs_length": 0}
        if work.top_logprobs > 0:
            meta |= {"input_top_logprobs": [], "output_top_logprobs": []}
    meta |= {
        "reasoning_tokens": 0,
        "completion_tokens": 1,
        "cached_tokens": 0,
        "weight_versions": [{"version": version, "start": 0, "end": 1}],
        "cached_tokens_details": None,
        "dp_rank": None,
    }
    return {"text": "", "output_ids": [0], "meta_info": meta | times}


def logprob_fields(call: Call, ids: Sequence[int], *, work: Work, model: Model) -> dict[str, Any]:
    entries = logprob_entries(ids, call.logprobs[: len(ids)], model=model, with_text=work.text_in_logprobs)
    prompt = work.prompt[work.logprob_start :] if work.logprob_start >= 0 else []
    given: list[float | None] = [-float(token_id % 64) / 16 for token_id in prompt]
    if work.logprob_start == 0:
        given[:1] = [None]
    inputs = logprob_entries(prompt, given, model=model, with_text=work.text_in_logprobs)
    fields: dict[str, Any] = {
        "input_token_logprobs": inputs,
        "output_token_logprobs": entries,
        "output_token_logprobs_length": len(entries),
    }
    if work.top_logprobs > 0:
        size, count = model.vocabulary_size, work.top_logprobs
        fields["input_top_logprobs"] = [
            None if entry[0] is None else top_entries(entry, count=count, vocabulary_size=size) for entry in inputs
        ]
        fields["output_top_logprobs"] = [top_entries(entry, count=count, vocabulary_size=size) for entry in entries]
    return fields
