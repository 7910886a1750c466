"""The engine: calls in progress, pauses, weights, and what tests may ask of it. No HTTP here."""

import asyncio
import random
from array import array
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from rolloutfleet_engine.call import Call
from rolloutfleet_engine.ending import FinishReason, end_of
from rolloutfleet_engine.faults import ABORTS, Fault, take_fault
from rolloutfleet_engine.generation import Generation, Pace
from rolloutfleet_engine.grammar import check_backend
from rolloutfleet_engine.model import Model
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.requests import Plan, RequestRefused
from rolloutfleet_engine.writer import Writer

ABORTED: FinishReason = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}

LOAD_FAILED = "Failed to update weights: no such tensor.\nRolling back to original weights."
FLUSH_REFUSED = (
    "Weights were updated, but the cache was not flushed because requests are still running or queued. Retract or "
    "finish them, then call /flush_cache."
)

OUTCOMES = ("finished", "aborted_by_caller", "aborted_by_request", "faults", "refused")


class Engine:
    """All state of one simulated engine. `clock` must be the event loop's own time."""

    def __init__(self, options: EngineOptions, *, clock: Callable[[], float], faults: Sequence[Fault] = ()) -> None:
        self.options = options
        self.clock = clock
        self.model = Model(options.model_path)
        self.context = options.max_context or self.model.context_length
        self.name = options.served_model_name or str(options.model_path)
        self.version = options.weight_version
        self.faults = list(faults)
        self.paused = False
        self.frozen: str | None = None
        self.calls: dict[str, Call] = {}
        self.counters: Counter[str] = Counter()
        self.faults_by_kind: Counter[str] = Counter()
        self.log: deque[dict[str, Any]] = deque(maxlen=options.log_size)
        self._continued = asyncio.Event()
        self._continued.set()
        self._closed = asyncio.Event()
        self._updating = False
        self._writer = Writer(self.model, options)
        self._rng = random.Random(options.seed)

    @property
    def accepting(self) -> bool:
        return not self.paused and not self._updating

    @property
    def running(self) -> int:
        return sum(call.generating for call in self.calls.values())

    def admit(self, rid: str, *, routing_key: str | None) -> Call:
        """Raises `RequestRefused` where a call with this id is in progress."""
        if rid in self.calls:
            raise RequestRefused(f"Duplicate request ID detected: {rid}")
        fault = take_fault(self.faults, rid)
        if fault is not None:
            self.faults_by_kind[fault.kind] += 1
        self.counters["received"] += 1
        call = Call(rid=rid, fault=fault, routing_key=routing_key, arrived=self.clock())
        self.calls[rid] = call
        return call

    def count_unread(self) -> None:
        """Counts a request that was refused before it became a call."""
        self.counters["received"] += 1
        self.counters["refused"] += 1

    def begin(self, call: Call, plan: Plan) -> None:
        """Decides what the call will get, and starts its clock. Raises `GrammarRefused`."""
        sampling, fault = plan.sampling, call.fault
        check_backend(sampling, self.options.grammar_backend)
        draft = self._writer.draft(plan.prompt, sampling=sampling, limit=plan.limit)
        ids = draft.ids if draft.end is None else (*draft.ids, draft.end)
        made, finish = end_of(ids, limit=plan.limit, sampling=sampling, model=self.model)
        if fault is not None and fault.kind in ABORTS:
            made = made[: fault.after_tokens]
            finish = ABORTED if fault.kind == "bare_abort" else abort_with_status(fault)
        generation = Generation(total=len(made), pace=self._pace(fault), started=self.clock(), version=self.version)
        if fault is not None and fault.kind == "never":
            generation.stalls_at = fault.after_tokens
        call.ids, call.finish = made, finish
        call.begin(plan, generation, partial(self._writer.logprobs, draft))

    def close(self, call: Call, outcome: str) -> None:
        """Forgets the call; counts and logs how it went."""
        self.calls.pop(call.rid, None)
        self.counters[outcome] += 1
        self.log.append(self._entry(call, outcome))
        self._closed.set()

    def abort(self, rid: str = "", *, abort_all: bool = False) -> None:
        """As SGLang aborts: a known id takes with it those that begin with it, a call held by a pause is not ended,
        and a call is told once only."""
        if not abort_all:
            call = self.calls.get(rid)
            if call is None or call.abort_sent:
                return
            call.abort_sent = True
        for call in list(self.calls.values()):
            if call.generating and (abort_all or call.rid.startswith(rid)):
                self._abort(call)

    async def pause(self, mode: str) -> None:
        """Returns, in mode abort, when nothing generates."""
        self.paused = True
        self._continued.clear()
        if mode == "abort":
            self.abort(abort_all=True)
            await self._until_idle()
            return
        self.frozen = mode
        for call in self.calls.values():
            call.settle(self.clock())
            if call.generation is not None:
                call.generation.hold(self.clock(), retract=mode == "retract")
                call.wake()

    def go_on(self) -> None:
        self.paused, self.frozen = False, None
        self._continued.set()
        for call in list(self.calls.values()):
            if call.generation is not None:
                call.generation.go_on(self.clock())
            if call.abort_on_continue:
                call.end(ABORTED, now=self.clock())
            call.wake()

    def change_version(self, version: str) -> None:
        for call in self.calls.values():
            call.settle(self.clock())
            if call.generation is not None:
                call.generation.change_version(version, self.clock())
        self.version = version

    async def update_weights(self, version: str | None, *, abort_all: bool, flush: bool) -> tuple[bool, str]:
        """Unless paused, waits for the calls in progress and holds new ones meanwhile."""
        fault = take_fault(self.faults, "", loads=True)
        if fault is not None:
            self.faults_by_kind[fault.kind] += 1
            return False, fault.message or LOAD_FAILED
        if abort_all:
            self.abort(abort_all=True)
        if not self.paused:
            self._updating = True
            try:
                await self._until_idle()
            finally:
                self._updating = False
                for call in self.calls.values():
                    call.wake()
        if version is not None:
            self.change_version(version)
        if flush and self.running and self.frozen != "retract":
            return False, FLUSH_REFUSED
        updated = "" if version is None else f" Weight version updated to {version}."
        return True, f"Succeeded to update model weights.{updated}"

    async def healthy(self) -> bool:
        """SGLang checks its health by a generation, which a pause holds: False after a while of that."""
        try:
            await asyncio.wait_for(self._continued.wait(), self.options.health_timeout)
        except TimeoutError:
            return False
        return True

    def totals(self) -> dict[str, Any]:
        named = {name: self.counters[name] for name in ("received", *OUTCOMES)}
        held = len(self.calls) - self.running
        return {**named, "running": self.running, "held": held, "faults_by_kind": dict(self.faults_by_kind)}

    def _abort(self, call: Call) -> None:
        if self.frozen == "in_place":
            call.abort_on_continue = True
        elif self.frozen == "retract":
            call.end_queued(now=self.clock())
        else:
            call.end(ABORTED, now=self.clock())

    async def _until_idle(self) -> None:
        while self.running:
            self._closed.clear()
            await self._closed.wait()

    def _pace(self, fault: Fault | None) -> Pace:
        factor = 1 + self.options.jitter * (2 * self._rng.random() - 1)
        delay = fault.seconds if fault is not None and fault.kind == "slow" else 0.0
        return Pace(first=self.options.latency * factor + delay, each=self.options.token_latency * factor)

    def _entry(self, call: Call, outcome: str) -> dict[str, Any]:
        plan, generation = call.plan, call.generation
        made = generation.made if generation is not None else 0
        return {
            "rid": call.rid,
            "outcome": outcome,
            "fault": call.fault_kind,
            "routing_key": call.routing_key,
            "traces": call.traces,
            "stream": plan.stream if plan is not None else None,
            "extra_key": plan.request.extra_key if plan is not None else None,
            "sampling_params": {} if plan is None else plan.sampling.given(),
            "input_ids": array("i", plan.prompt if plan is not None else ()),
            "output_ids": array("i", call.ids[:made]),
            "output_logprobs": array("d", call.logprobs[:made]),
            "weight_versions": [(s.version, s.start, s.end) for s in generation.spans()] if generation else [],
            "finish_reason": call.finish if outcome in ("finished", "aborted_by_request", "faults") else None,
            "seconds": self.clock() - call.arrived,
        }


def abort_with_status(fault: Fault) -> FinishReason:
    message = fault.message or "The engine gave the request up."
    return {"type": "abort", "message": message, "status_code": fault.status, "err_type": "InternalServerError"}
