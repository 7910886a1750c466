"""One request inside the engine, from its arrival to its answer."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy

from rolloutfleet_engine.ending import FinishReason
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.generation import Generation
from rolloutfleet_engine.model import Model
from rolloutfleet_engine.requests import Plan

LogprobEntry = tuple[float | None, int, str | None]

QUEUE_ABORT = "Abort in waiting queue"
NOT_FROM_THE_QUEUE = frozenset(
    ("prompt_tokens", "num_retractions", "reasoning_tokens", "cached_tokens", "cached_tokens_details", "dp_rank")
)
"""What the queue's answers leave out."""

encode = msgspec.json.Encoder().encode

NON_STREAM_REPORT = 50
"""SGLang's scheduler reports the tokens of a call that isn't streamed this many at a time until it finishes."""


@dataclass(kw_only=True, slots=True, eq=False)
class Call:
    """A request with what has been made for it. One task waits on it; `wake` ends the wait."""

    rid: str
    fault: Fault | None
    routing_key: str | None
    arrived: float
    traces: dict[str, str] = field(default_factory=dict)
    left: bool = False
    abort_sent: bool = False
    abort_on_continue: bool = False
    aborted: bool = False
    plan: Plan | None = None
    generation: Generation | None = None
    ids: Sequence[int] = ()
    finish: FinishReason = field(default_factory=dict)
    logprobs: list[float] = field(default_factory=list)
    entries: list[LogprobEntry] = field(default_factory=list)
    """What answers say of the first tokens' log-probabilities: streams repeat it in every event, so it is made once."""
    tops: list[msgspec.Raw] = field(default_factory=list)
    """The same of the candidates at their places, as JSON."""
    _logprobs: Callable[[str, int], list[float]] = field(init=False)
    _woken: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def fault_kind(self) -> str | None:
        return None if self.fault is None else self.fault.kind

    @property
    def generating(self) -> bool:
        return self.generation is not None

    def begin(self, plan: Plan, generation: Generation, logprobs: Callable[[str, int], list[float]]) -> None:
        """`logprobs`: of the first tokens, so many, under one weight version."""
        self.plan, self.generation, self._logprobs = plan, generation, logprobs

    def settle(self, now: float) -> int:
        """Counts the tokens made until `now`, under the weights in force since the last count."""
        if self.generation is None:
            return 0
        made = self.generation.advance(now)
        if made > len(self.logprobs):
            self.logprobs += self._logprobs(self.generation.version, made)[len(self.logprobs) :]
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
        if self.generation is None or self.plan is None:
            return
        self.end({"type": "abort", "message": QUEUE_ABORT}, now=now)
        if self.aborted and not self.plan.stream:
            shown = self.generation.made - self.generation.made % NON_STREAM_REPORT
            self.generation.made = self.generation.total = shown
            del self.logprobs[shown:]

    def leave(self) -> None:
        self.left = True
        self.wake()

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, until: float | None) -> None:
        """Waits until the loop's time `until`, or for ever, or for `wake`."""
        self._woken.clear()
        timer = asyncio.get_running_loop().call_at(until, self.wake) if until is not None else None
        try:
            await self._woken.wait()
        finally:
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
    plan, generation = call.plan, call.generation
    assert plan is not None and generation is not None
    ids = list(call.ids[:count])
    spans = [{"version": s.version, "start": s.start, "end": s.end} for s in generation.spans()] if final else []
    logprobs = logprob_fields(plan, plan.prompt, call, len(ids), model=model)
    meta = meta_info(
        call, call.finish if final else None, len(plan.prompt), len(ids), logprobs, version=version, spans=spans
    )
    if final and call.finish.get("message") == QUEUE_ABORT:
        meta = {name: value for name, value in meta.items() if name not in NOT_FROM_THE_QUEUE}
    body = {"text": text, "output_ids": ids, "meta_info": meta | times}
    return body | {"prompt_token_ids": plan.prompt} if plan.request.return_prompt_token_ids else body


def aborted_body(
    call: Call, plan: Plan, finish: FinishReason, *, version: str, times: dict[str, float], model: Model
) -> dict[str, Any]:
    """The answer to a request that SGLang aborts in its queue: a token without a log-probability, behind a prompt that
    it has cut to one token."""
    spans = [{"version": version, "start": 0, "end": 1}]
    logprobs = logprob_fields(plan, [], call, 0, model=model)
    meta = meta_info(call, finish, 1, 1, logprobs, version=version, spans=spans)
    return {"text": "", "output_ids": [0], "meta_info": meta | times}


def meta_info(
    call: Call,
    finish: FinishReason | None,
    prompt: int,
    made: int,
    logprobs: dict[str, Any],
    *,
    version: str,
    spans: list[dict[str, Any]],
) -> dict[str, Any]:
    """`prompt` and `made` are tokens; `spans` are their versions, where the answer is the last."""
    return {
        "id": call.rid,
        "finish_reason": finish,
        "prompt_tokens": prompt,
        "weight_version": spans[-1]["version"] if spans else version,
        "num_retractions": call.generation.retractions if call.generation is not None else 0,
        **logprobs,
        "reasoning_tokens": 0,
        "completion_tokens": made,
        "cached_tokens": 0,
        **({"weight_versions": spans} if spans else {}),
        "cached_tokens_details": None,
        "dp_rank": None,
    }


def logprob_fields(plan: Plan, prompt: list[int], call: Call, count: int, *, model: Model) -> dict[str, Any]:
    """Those of the prompt and of the call's first `count` tokens. Nothing where none are asked for."""
    request = plan.request
    if not request.return_logprob:
        return {}
    start = -1 if request.logprob_start_len is None else request.logprob_start_len
    prompt = prompt[start:] if start >= 0 else []
    given: list[float | None] = [-float(token_id % 64) / 16 for token_id in prompt]
    if start >= 0:
        given[:1] = [None][: len(given)]
    with_text = bool(request.return_text_in_logprobs)
    inputs = logprob_entries(prompt, given, model=model, with_text=with_text)
    begun = len(call.entries)
    call.entries += logprob_entries(call.ids[begun:count], call.logprobs[begun:count], model=model, with_text=with_text)
    entries = call.entries[:count]
    fields: dict[str, Any] = {
        "input_token_logprobs": inputs,
        "output_token_logprobs": entries,
        "output_token_logprobs_length": len(entries),
    }
    if (candidates := request.top_logprobs_num or 0) > 0:
        size = model.vocabulary_size
        fields["input_top_logprobs"] = [
            None if entry[0] is None else top_entries(entry, count=candidates, vocabulary_size=size) for entry in inputs
        ]
        new = (top_entries(entry, count=candidates, vocabulary_size=size) for entry in entries[len(call.tops) :])
        call.tops += map(msgspec.Raw, map(encode, new))
        fields["output_top_logprobs"] = call.tops[:count]
    return fields
