"""An engine's streamed reply, from bytes to new tokens to the whole. Pure.

SGLang sends `data: {...}` events and then `data: [DONE]`. By default every event repeats all tokens so far; with
`--incremental-streaming-output` it has the new ones only. `completion_tokens` counts all tokens either way, which
tells the two apart event by event. Repeating makes a stream's cost grow with the square of its length, so of several
repeating events that came together only the last is read, and of that only the ids behind those known, until the last
event of all is read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import Struct

from rolloutfleet_proxy.engine.cutting import CutText
from rolloutfleet_proxy.engine.evidence import (
    AbortedWithError,
    Alternative,
    Reason,
    Refused,
    Reply,
    Token,
    check_finish,
    decode,
)

_DATA = b"data:"
_DONE = b"[DONE]"
_SHORT = 16
_UNFINISHED = b'"finish_reason":null'
_IDS = b'"output_ids":['
"""Quotes stand in a JSON text with a backslash before them, so no text can hold either of these two."""
_RETRACTED = "abort"


class Chunk(Struct, frozen=True):
    """Tokens that were not there before. `logprobs` and `top_logprobs` only where they were asked for."""

    output_ids: list[int]
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[float, int]]] | None = None


class _Failure(Struct):
    error: Any


_decode_ids = msgspec.json.Decoder(list[int]).decode
_encode = msgspec.json.Encoder().encode
_decode_failure = msgspec.json.Decoder(_Failure).decode


@dataclass(frozen=True, slots=True)
class BigEvent:
    """An event too large to be handled in one go: its data, in pieces as they came."""

    pieces: list[bytes]
    unfinished: bool
    """More events follow."""

    @property
    def nbytes(self) -> int:
        return sum(map(len, self.pieces))


class EventSplitter:
    """Cuts a byte stream into the data of its server-sent events, each of which is one line here.

    From `big` bytes on an event goes without its long strings; one that is still larger is never joined: each pass over
    20 MB takes 10 to 40 ms.
    """

    def __init__(self, *, big: int, max_bytes: int) -> None:
        self._big = big
        self._max_bytes = max_bytes
        self._begun = self._new_line()

    def feed(self, data: bytes) -> list[bytes | BigEvent]:
        """The events that `data` completes, comments left out. Raises Refused where one is beyond all bounds."""
        # One byte is searched for many times quicker than two, which is why lines are cut and not events.
        lines = data.split(b"\n")
        events: list[bytes | BigEvent] = []
        if self._begun.came or len(lines) == 1 or len(data) > self._big:
            self._begun.add(lines.pop(0))
            if not lines:
                return []
            events += self._line()
            self._begun = self._new_line()
        rest = lines.pop()
        events += [line[len(_DATA) :] for line in lines if line.startswith(_DATA)]
        if rest:
            self._begun.add(rest)
        return events

    def _new_line(self) -> CutText:
        return CutText(what="An event of the stream", big=self._big, max_bytes=self._max_bytes)

    def _line(self) -> list[bytes | BigEvent]:
        """What the pieces make together."""
        pieces = self._begun.pieces
        if not self._begun.is_big:
            line = b"".join(pieces)
            return [line[len(_DATA) :]] if line.startswith(_DATA) else []
        head = b""
        while len(head) < len(_DATA) and pieces:
            head += pieces.pop(0)
        if not head.startswith(_DATA):
            return []
        pieces = [head[len(_DATA) :], *pieces]
        return [BigEvent(pieces, unfinished=_holds(pieces, _UNFINISHED))]


def _holds(pieces: Sequence[bytes], letters: bytes) -> bool:
    """Whether the letters stand in the joined pieces."""
    overlap = len(letters) - 1
    before = b""
    for piece in pieces:
        if letters in piece or letters in before + piece[:overlap]:
            return True
        before = (before + piece)[-overlap:] if len(piece) < overlap else piece[-overlap:]
    return False


class StreamedReply:
    """Collects a reply from its events; `reply` is the whole once the last has come."""

    def __init__(self, *, with_logprobs: bool) -> None:
        self.reply: Reply | None = None
        self._with_logprobs = with_logprobs
        self._repeats = False
        self._ids: list[int] = []
        self._ids_json = b""
        self._tokens: list[Token] = []
        self._alternatives: list[list[Alternative]] = []

    @property
    def count(self) -> int:
        """Tokens handed over."""
        return len(self._ids)

    def add(self, events: Sequence[bytes]) -> Chunk | None:
        """Read events that came together; what is new in them. Raises Refused, AbortedWithError."""
        events = [event for event in events if len(event) > _SHORT or event.strip() != _DONE]
        if self._repeats:
            events = events[-1:]
        before = len(self._ids)
        for event in events:
            if self.reply is not None:
                raise Refused(Reason.STREAM_ORDER, "An event came after the last.")
            self._read(event)
        return self._chunk(before) if len(self._ids) > before else None

    def check_sent(self, ids: Sequence[int]) -> None:
        """Raises Refused unless `ids` begins with what was handed over."""
        if list(ids[: len(self._ids)]) != self._ids:
            raise Refused(Reason.STREAM_ORDER, "The stream changed tokens that it had sent.")

    def _read(self, event: bytes) -> None:
        if self._repeats and not self._with_logprobs and _UNFINISHED in event and self._read_new_ids(event):
            return
        reply = self._decode(event)
        check_finish(reply.meta_info.finish_reason)
        count, total, seen = len(reply.output_ids), reply.meta_info.completion_tokens, len(self._ids)
        if self._repeats or (count == total and seen):
            self._repeats = True
            self._repeat_whole(reply)
        elif seen + count == total:
            self._extend(reply)
        elif not self._is_late_abort(reply):
            raise Refused(
                Reason.LENGTH_MISMATCH, f"{count} ids came after {seen} with completion_tokens {total} in the stream."
            )
        if reply.meta_info.finish_reason is not None:
            self.reply = self._whole(reply)

    def _read_new_ids(self, event: bytes) -> bool:
        """Read the ids behind those that are known; False where the event has another form than expected."""
        start = event.find(_IDS) + len(_IDS)
        end = event.find(b"]", start)
        known = self._ids_json
        behind = start + len(known)
        if start < len(_IDS) or end < behind or not event.startswith(known, start):
            return False
        if end > behind:
            if not event.startswith(b",", behind):
                return False
            try:
                self._ids += _decode_ids(b"[" + event[behind + 1 : end] + b"]")
            except msgspec.DecodeError:
                return False
            self._ids_json = event[start:end]
        return True

    def _repeat(self, ids: list[int]) -> None:
        self.check_sent(ids)
        self._ids = ids
        self._ids_json = _encode(ids)[1:-1]

    def _repeat_whole(self, reply: Reply) -> None:
        self._repeat(reply.output_ids)
        self._tokens = reply.meta_info.output_token_logprobs
        self._alternatives = reply.meta_info.output_top_logprobs or []

    def _extend(self, reply: Reply) -> None:
        meta = reply.meta_info
        if len(meta.output_token_logprobs) != len(reply.output_ids):
            raise Refused(
                Reason.LENGTH_MISMATCH,
                f"{len(reply.output_ids)} ids came with {len(meta.output_token_logprobs)} log-probabilities.",
            )
        self._ids += reply.output_ids
        self._tokens += meta.output_token_logprobs
        self._alternatives += meta.output_top_logprobs or []

    def _is_late_abort(self, reply: Reply) -> bool:
        """A request aborted while it waits again: an incremental stream then repeats its last id alone, and all
        log-probabilities (`_handle_abort_req`)."""
        finish = reply.meta_info.finish_reason
        return (
            isinstance(finish, dict)
            and finish.get("type") == _RETRACTED
            and reply.meta_info.completion_tokens == len(self._ids)
            and reply.output_ids == self._ids[-1:]
        )

    def _whole(self, last: Reply) -> Reply:
        if self._repeats:
            return last
        meta = msgspec.structs.replace(
            last.meta_info, output_token_logprobs=self._tokens, output_top_logprobs=self._alternatives or None
        )
        return Reply(output_ids=self._ids, meta_info=meta)

    def _chunk(self, before: int) -> Chunk:
        ids = self._ids[before:]
        if not self._with_logprobs:
            return Chunk(ids)
        logprobs = [token.logprob for token in self._tokens[before : before + len(ids)]]
        if len(logprobs) != len(ids):
            raise Refused(Reason.LENGTH_MISMATCH, f"{len(ids)} ids came with {len(logprobs)} log-probabilities.")
        rows = self._alternatives[before:]
        alternatives = [[(a.logprob, a.id) for a in row if a.logprob is not None] for row in rows]
        return Chunk(ids, logprobs, alternatives or None)

    def _decode(self, event: bytes) -> Reply:
        try:
            return decode(event)
        except Refused:
            _raise_if_failure(event)
            raise


def _raise_if_failure(event: bytes) -> None:
    """`{"error": {"message": str, "code": int}}` instead of a reply."""
    try:
        error = _decode_failure(event).error
    except (ValueError, RecursionError):
        return
    if not isinstance(error, dict):
        raise AbortedWithError(500, str(error))
    code = error.get("code")
    status = code if type(code) is int and 400 <= code < 600 else 500
    raise AbortedWithError(status, str(error.get("message") or "no message"))
