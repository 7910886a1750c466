"""Misbehaviour on request: what an engine does wrong, to which calls, how often. Pure."""

from collections.abc import Callable
from typing import Any

import msgspec

Reply = dict[str, Any]

HTTP_ERRORS = {"error_500": 500, "error_429": 429, "error_503": 503}
"""Kinds that answer with an HTTP error before anything is made."""

PACE_FAULTS = ("slow", "never")
"""Kinds that keep the caller waiting."""

ABORTS = ("bare_abort", "abort_with_status")
"""Kinds that end a generation early, as an engine does by itself."""

WIRE_FAULTS = ("cut_stream", "garbage_json")
"""Kinds that break the bytes of an answer."""

LOAD_FAULTS = ("load_fails",)
"""Kinds for `/update_weights_from_disk`; no generation takes them."""

ROUTED_EXPERTS_BYTES = 100_000_000


class Fault(msgspec.Struct, kw_only=True):
    """One entry of the queue.

    `after_tokens`: how many tokens come right first (streams; aborts; `never`). `rid`: only the call whose rid begins
    so. `seconds`: how much slower. `status`: of `abort_with_status`. `message`: the text of an error, or of a load.
    """

    kind: str
    count: int = 1
    after_tokens: int = 0
    rid: str | None = None
    seconds: float = 5.0
    status: int = 500
    message: str | None = None

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown kind `{self.kind}`, expected one of {', '.join(KINDS)}")
        if self.count < 1 or self.after_tokens < 0:
            raise ValueError("count must be at least 1, after_tokens at least 0")


def wrong_length(reply: Reply) -> None:
    """A log-probability is missing."""
    logprobs(reply)[-1:] = []


def set_logprob(value: object) -> Callable[[Reply], None]:
    def spoil(reply: Reply) -> None:
        if logprobs(reply):
            logprobs(reply)[-1][0] = value

    return spoil


def other_id_in_logprobs(reply: Reply) -> None:
    """The log-probabilities speak of another token than the ids do."""
    if logprobs(reply):
        logprobs(reply)[-1][1] += 1


def set_id(value: object) -> Callable[[Reply], None]:
    """The bad id stands in both places, so that nothing but its own value gives it away."""

    def spoil(reply: Reply) -> None:
        if reply["output_ids"]:
            reply["output_ids"][-1] = value
        if logprobs(reply):
            logprobs(reply)[-1][1] = value

    return spoil


def drop(*names: str) -> Callable[[Reply], None]:
    def spoil(reply: Reply) -> None:
        for name in names:
            reply["meta_info"].pop(name, None)

    return spoil


def unknown_finish_reason(reply: Reply) -> None:
    if reply["meta_info"].get("finish_reason"):
        reply["meta_info"]["finish_reason"] = {"type": "mystery"}


def wrong_count(reply: Reply) -> None:
    reply["meta_info"]["completion_tokens"] += 1


def routed_experts(reply: Reply) -> None:
    """What SGLang adds with `return_routed_experts`, as long as it gets: nothing is wrong with such a reply."""
    reply["meta_info"]["routed_experts"] = "A" * ROUTED_EXPERTS_BYTES


def cached(reply: Reply) -> None:
    """As where the prompt began with what a prefix cache held: nothing is wrong with such a reply."""
    reply["meta_info"]["cached_tokens"] = 12


def logprobs(reply: Reply) -> list[list[Any]]:
    found: list[list[Any]] = reply["meta_info"].setdefault("output_token_logprobs", [])
    return found


SPOILERS: dict[str, Callable[[Reply], object]] = {
    "wrong_length": wrong_length,
    "extra_logprob": lambda reply: logprobs(reply).append([-1.0, 0, None]),
    "nan": set_logprob(float("nan")),
    "null_logprob": set_logprob(None),
    "infinity": set_logprob(float("-inf")),
    "sentinel": set_logprob(-9999.0),
    "positive": set_logprob(0.5),
    "bool": set_logprob(True),
    "string_logprob": set_logprob("-0.5"),
    "other_id_in_logprobs": other_id_in_logprobs,
    "bad_id": set_id(-1),
    "huge_id": set_id(2**40),
    "bool_id": set_id(True),
    "missing_ids": lambda reply: reply.pop("output_ids"),
    "missing_logprobs": drop("output_token_logprobs", "output_token_logprobs_length"),
    "missing_meta": lambda reply: reply.pop("meta_info"),
    "missing_finish_reason": drop("finish_reason"),
    "unknown_finish_reason": unknown_finish_reason,
    "missing_version": drop("weight_version", "weight_versions"),
    "wrong_count": wrong_count,
    "routed_experts": routed_experts,
    "cached": cached,
    "missing_cached_tokens": drop("cached_tokens"),
}
"""Kinds that change a reply that is otherwise right."""

KINDS = (*SPOILERS, *HTTP_ERRORS, "context_length", *PACE_FAULTS, *ABORTS, *WIRE_FAULTS, *LOAD_FAULTS)


def take_fault(waiting: list[Fault], rid: str, *, loads: bool = False) -> Fault | None:
    """Of the faults that wait for a call, or for weights to load, the first that fits; it is used `count` times."""
    fitting = (each for each in waiting if (each.kind in LOAD_FAULTS) == loads)
    fault = next((each for each in fitting if each.rid is None or rid.startswith(each.rid)), None)
    if fault is not None:
        fault.count -= 1
        if not fault.count:
            waiting.remove(fault)
    return fault
