"""What an engine's reply must be before a turn is made of it (promise 2). Pure.

The wire form is SGLang's `/generate` (0.5.23, `managers/tokenizer_manager.py`), as far as it is read here:

    {"output_ids": [int], "meta_info": {
        "finish_reason": {"type": "stop" | "length" | "abort", "matched"?, "message"?, "status_code"?} | null,
        "prompt_tokens": int, "completion_tokens": int, "cached_tokens": int,
        "output_token_logprobs": [[logprob, id, text | null]], "output_top_logprobs"?: [[[logprob, id, text]]],
        "weight_version"?: str, "weight_versions"?: [{"version": str, "start": int, "end": int}]}}

`output_ids` holds the stop token too. A request that is aborted while it waits has no `prompt_tokens`.
What is refused is refused whole: nothing is trimmed, guessed or tokenised again.
"""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Collection, Sequence
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

Finish = Literal["stop", "length", "abort"]

SENTINEL = -9999.0
"""Engines write it for a log-probability they don't have; no sampled token can be as unlikely (e^-9999)."""
ROUNDING = 1e-3
"""How far above 0 a log-probability may stand: a float32 log-softmax rounds there, a wrong field stands higher."""
_MAX_INT32 = 2**31 - 1


class Reason:
    """Why a reply is refused; these are also the values of the metric's label."""

    MALFORMED = "malformed"
    MISSING_FIELD = "missing_field"
    WRONG_TYPE = "wrong_type"
    LENGTH_MISMATCH = "length_mismatch"
    TOKEN_MISMATCH = "token_mismatch"
    PROMPT_MISMATCH = "prompt_mismatch"
    OUT_OF_VOCABULARY = "out_of_vocabulary"
    TOO_MANY_TOKENS = "too_many_tokens"
    EMPTY = "empty"
    LOGPROB_MISSING = "logprob_missing"
    NAN = "nan"
    INFINITE = "infinite"
    SENTINEL = "sentinel"
    POSITIVE = "positive"
    TOP_LOGPROBS = "top_logprobs"
    FINISH_REASON = "finish_reason"
    VERSION_SPANS = "version_spans"
    STREAM_ORDER = "stream_order"
    TOO_BIG = "too_big"


class Refused(Exception):
    """The reply is not evidence; `reason` is one of `Reason`."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class AbortedWithError(Exception):
    """The engine ended a request or stream with an error of its own; `status` is an HTTP status from 400 to 599."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message


class Token(Struct, array_like=True, frozen=True, gc=False):
    """`[logprob, id, text]`, the text unread."""

    logprob: float
    id: int


class Alternative(Struct, array_like=True, frozen=True, gc=False):
    """The same in `output_top_logprobs`, where an impossible token's -inf becomes null."""

    logprob: float | None
    id: int


class VersionSpan(Struct, frozen=True):
    """One element of `weight_versions` as sent."""

    version: Any
    start: int
    end: int


class Meta(Struct, kw_only=True):
    """`meta_info`, as far as it is read."""

    completion_tokens: int
    finish_reason: Any
    output_token_logprobs: list[Token]
    prompt_tokens: int | UnsetType = UNSET
    cached_tokens: int | None = None
    output_top_logprobs: list[list[Alternative]] | None = None
    weight_version: Any = None
    weight_versions: list[VersionSpan] | None = None


class Reply(Struct):
    """A whole reply, or one event of a stream, decoded and not yet checked."""

    output_ids: list[int]
    meta_info: Meta


class Span(Struct, frozen=True):
    """The tokens from `start` to before `end` were made by the weights of this version."""

    version: int
    start: int
    end: int


class Expected(Struct, frozen=True):
    """What was asked for, which a reply is held against.

    `vocab_size` is the model's (its rows, which can be more than the tokenizer's words); None is not checked.
    """

    prompt_tokens: int
    max_new_tokens: int
    vocab_size: int | None = None
    top_logprobs: int = 0


class Evidence(Struct, frozen=True):
    """A checked reply, or several joined: `output_ids` int32 and `logprobs` float32 are of one length.

    `spans` covers them exactly, in order; None where the engine named no numeric version.
    `version_differs`: some token's version is not one that the proxy knew of (set by `with_versions`).
    `top_logprobs` has one list of (logprob, id) a token, where it was asked for.
    `matched` is the stop token's id or the stop string, where the engine named one.
    """

    output_ids: array[int]
    logprobs: array[float]
    finish_reason: Finish
    prompt_tokens: int
    matched: int | str | None = None
    cached_tokens: int | None = None
    top_logprobs: list[list[tuple[float, int]]] | None = None
    spans: tuple[Span, ...] | None = None
    version_differs: bool = False


_lowest, _highest = np.minimum.reduce, np.maximum.reduce
_decode_reply = msgspec.json.Decoder(Reply).decode
_BAD_BYTE = re.compile(r"\(byte (\d+)\)")
_PATH = re.compile(r" - at `([^`]*)`$")


def decode(body: bytes) -> Reply:
    """Read a reply's JSON once, typed. Raises Refused."""
    try:
        return _decode_reply(body)
    except (ValueError, RecursionError) as error:
        raise _undecodable(body, str(error)) from None


def check(reply: Reply, expected: Expected) -> Evidence:
    """Hold a whole reply against what was asked. Raises Refused or AbortedWithError."""
    meta, ids = reply.meta_info, reply.output_ids
    tokens, count = meta.output_token_logprobs, len(ids)
    finish, matched = _finish(meta.finish_reason)
    if len(tokens) != count:
        raise Refused(Reason.LENGTH_MISMATCH, f"{count} output ids came with {len(tokens)} log-probabilities.")
    if [token.id for token in tokens] != ids:
        raise Refused(Reason.TOKEN_MISMATCH, "The log-probabilities name other ids than output_ids.")
    output_ids, logprobs = _id_array(ids), _logprob_array([token.logprob for token in tokens])
    if meta.completion_tokens != count:
        raise Refused(
            Reason.LENGTH_MISMATCH, f"{count} output ids came with completion_tokens {meta.completion_tokens}."
        )
    if count > expected.max_new_tokens:
        raise Refused(Reason.TOO_MANY_TOKENS, f"{count} tokens came where {expected.max_new_tokens} were asked for.")
    _check_prompt(meta.prompt_tokens, expected=expected, finish=finish)
    _check_ids(output_ids, vocab_size=expected.vocab_size)
    _check_logprobs(logprobs)
    return Evidence(
        output_ids=output_ids,
        logprobs=logprobs,
        finish_reason=finish,
        matched=matched,
        prompt_tokens=expected.prompt_tokens,
        cached_tokens=meta.cached_tokens,
        top_logprobs=_checked_alternatives(meta.output_top_logprobs, asked=expected.top_logprobs, count=count),
        spans=_spans(meta, count=count),
    )


def check_finish(finish_reason: Any) -> None:
    """Of an event of a stream, None but of the last. A request that SGLang aborts in its queue comes with a token that
    has no log-probability (0.5.23): the error is what counts. Raises AbortedWithError, Refused."""
    if finish_reason is not None:
        _finish(finish_reason)


def join(parts: Sequence[Evidence]) -> Evidence:
    """One turn of several rounds: tokens in order, spans moved along, the end from the last, prompt and cache
    from the first."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    output_ids: array[int] = array("i")
    logprobs: array[float] = array("f")
    top_logprobs: list[list[tuple[float, int]]] = []
    spans: list[Span] = []
    for part in parts:
        offset = len(output_ids)
        output_ids += part.output_ids
        logprobs += part.logprobs
        top_logprobs += part.top_logprobs or []
        spans += [Span(span.version, span.start + offset, span.end + offset) for span in part.spans or ()]
    has_spans = all(part.spans is not None for part in parts)
    return Evidence(
        output_ids=output_ids,
        logprobs=logprobs,
        finish_reason=last.finish_reason,
        matched=last.matched,
        prompt_tokens=first.prompt_tokens,
        cached_tokens=first.cached_tokens,
        top_logprobs=None if first.top_logprobs is None else top_logprobs,
        spans=_merged(spans) if has_spans else None,
        version_differs=any(part.version_differs for part in parts),
    )


def with_versions(evidence: Evidence, own: Sequence[Span], *, known: Collection[int] = ()) -> Evidence:
    """Fill in the proxy's own versions where the engine named none, else compare them.

    `own` covers the tokens with the versions that the proxy knew of as they came. A token's version counts as a
    difference where it is neither one of those nor in `known`.
    """
    if evidence.spans is None:
        return replace(evidence, spans=_merged(own))
    familiar = {*known, *(span.version for span in own)}
    differs = any(span.version not in familiar for span in evidence.spans)
    return replace(evidence, version_differs=True) if differs else evidence


def numeric_version(value: Any) -> int | None:
    """A weight version as a whole number from 0 to 2^31-1; None for what is no such number ("default")."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        value = int(value)
    if type(value) is int and 0 <= value <= _MAX_INT32:
        return value
    return None


def _finish(value: Any) -> tuple[Finish, int | str | None]:
    if not isinstance(value, dict):
        raise Refused(Reason.FINISH_REASON, "The reply has no finish reason.")
    kind = value.get("type")
    if kind == "stop":
        return "stop", _matched(value.get("matched"))
    if kind == "length":
        return "length", None
    if kind == "abort":
        status = value.get("status_code")
        if type(status) is int and 400 <= status < 600:
            raise AbortedWithError(status, str(value.get("message") or "aborted"))
        return "abort", None
    raise Refused(Reason.FINISH_REASON, f"The finish reason is of the unknown type {str(kind)[:40]!r}.")


def _matched(value: Any) -> int | str | None:
    """A stop token, a stop string, or the last of several tokens that stop together."""
    if isinstance(value, list) and value:
        value = value[-1]
    return value if isinstance(value, int | str) else None


def _check_prompt(prompt_tokens: int | UnsetType, *, expected: Expected, finish: Finish) -> None:
    if prompt_tokens is UNSET:
        if finish == "abort":
            return
        raise Refused(Reason.MISSING_FIELD, "The reply has no prompt_tokens.")
    if prompt_tokens != expected.prompt_tokens:
        raise Refused(
            Reason.PROMPT_MISMATCH,
            f"The engine read {prompt_tokens} prompt tokens where {expected.prompt_tokens} were sent.",
        )


def _id_array(ids: list[int]) -> array[int]:
    try:
        # Several times quicker than `array("i", ids)`.
        return array("i", struct.pack(f"{len(ids)}i", *ids))
    except struct.error:
        raise Refused(Reason.OUT_OF_VOCABULARY, "An output id is not a 32-bit number.") from None


def _logprob_array(logprobs: list[float]) -> array[float]:
    try:
        return array("f", struct.pack(f"{len(logprobs)}f", *logprobs))
    except OverflowError:
        # Infinite as a float32, which is what it will be refused for.
        return array("f", logprobs)


def _check_ids(ids: array[int], *, vocab_size: int | None) -> None:
    if not ids:
        return
    # A view of the array's memory: the largest of 1,000 numbers in a microsecond, where `max` takes 20. In it negative
    # ones are larger than all others.
    highest = int(_highest(np.frombuffer(ids, dtype=np.uint32)))
    if highest > (_MAX_INT32 if vocab_size is None else vocab_size - 1):
        wrong = highest if highest <= _MAX_INT32 else min(ids)
        raise Refused(Reason.OUT_OF_VOCABULARY, f"Output id {wrong} is outside a vocabulary of {vocab_size}.")


def _check_logprobs(logprobs: array[float]) -> None:
    if not logprobs:
        return
    view = np.frombuffer(logprobs, dtype=np.float32)
    lowest, highest = float(_lowest(view)), float(_highest(view))
    # NaN fails every comparison, so the good case is asked for.
    if not (lowest > SENTINEL and highest <= ROUNDING):
        raise _bad_logprob(lowest, highest)


def _bad_logprob(lowest: float, highest: float) -> Refused:
    if lowest != lowest:
        return Refused(Reason.NAN, "A log-probability is NaN.")
    if lowest == float("-inf") or highest == float("inf"):
        return Refused(Reason.INFINITE, "A log-probability is infinite.")
    if lowest <= SENTINEL:
        return Refused(Reason.SENTINEL, f"A log-probability is {lowest}, which stands for none.")
    return Refused(Reason.POSITIVE, f"A log-probability is {highest}, above 0.")


def _checked_alternatives(
    rows: list[list[Alternative]] | None, *, asked: int, count: int
) -> list[list[tuple[float, int]]] | None:
    if asked == 0:
        return None
    if rows is None:
        if count == 0:
            return []
        raise Refused(Reason.TOP_LOGPROBS, "The reply has no output_top_logprobs.")
    if len(rows) != count:
        raise Refused(Reason.TOP_LOGPROBS, f"{count} tokens came with {len(rows)} lists of alternatives.")
    if any(len(row) > asked for row in rows):
        raise Refused(Reason.TOP_LOGPROBS, f"A token came with more than {asked} alternatives.")
    return [[(a.logprob, a.id) for a in row if a.logprob is not None] for row in rows]


def _spans(meta: Meta, *, count: int) -> tuple[Span, ...] | None:
    sent = meta.weight_versions
    if sent:
        versions = [numeric_version(span.version) for span in sent]
        if None not in versions:
            return _covering(
                [Span(v, s.start, s.end) for v, s in zip(versions, sent, strict=True) if v is not None], count
            )
    version = numeric_version(meta.weight_version)
    if version is None:
        return None
    return (Span(version, 0, count),) if count else ()


def _covering(spans: list[Span], count: int) -> tuple[Span, ...]:
    at = 0
    for span in spans:
        if span.start != at or span.end < span.start:
            break
        at = span.end
    else:
        if at == count:
            return _merged(spans)
    raise Refused(Reason.VERSION_SPANS, f"The spans of weight versions don't cover the {count} tokens exactly.")


def _merged(spans: Sequence[Span]) -> tuple[Span, ...]:
    merged: list[Span] = []
    for span in spans:
        if span.start == span.end:
            continue
        if merged and merged[-1].version == span.version:
            merged[-1] = Span(span.version, merged[-1].start, span.end)
        else:
            merged.append(span)
    return tuple(merged)


def _undecodable(body: bytes, error: str) -> Refused:
    """Name the reason from the decoder's own words: a second, lenient parse would cost as much as the first."""
    found = _BAD_BYTE.search(error)
    if found is not None:
        literal = body[int(found[1]) : int(found[1]) + 9].lstrip(b"-")
        if literal.startswith(b"NaN"):
            return Refused(Reason.NAN, "The reply holds NaN.")
        if literal.startswith((b"Inf", b"inf")):
            return Refused(Reason.INFINITE, "The reply holds an infinite number.")
    path = _PATH.search(error)
    where = path[1] if path else "$"
    if "Number out of range" in error:
        return Refused(Reason.INFINITE, f"A number is out of range at {where}.")
    if "missing required field" in error:
        return Refused(Reason.MISSING_FIELD, f"{error}.")
    if "got `null`" in error and "output_token_logprobs" in where and where.endswith("[0]"):
        return Refused(Reason.LOGPROB_MISSING, "A log-probability is null.")
    if "output_top_logprobs" in where:
        return Refused(Reason.TOP_LOGPROBS, f"{error}.")
    if "weight_versions" in where:
        return Refused(Reason.VERSION_SPANS, f"{error}.")
    if path or error.startswith("Expected"):
        return Refused(Reason.WRONG_TYPE, f"{error}.")
    return Refused(Reason.MALFORMED, f"The reply is not JSON: {error[:200]}.")
