"""An engine's streamed reply, from bytes to new tokens to the whole. Pure.

SGLang sends `data: {...}` events and then `data: [DONE]`. By default every event repeats all tokens so far; with
`--incremental-streaming-output` it has the new ones only. `completion_tokens` counts all tokens either way, which
tells the two apart event by event. Repeating makes a stream's cost grow with the square of its length, so of several
repeating events that came together only the last is read, and of that only what its lists have behind what is known,
until the last event of all is read whole. What is known is compared, not read: that takes a thirtieth of the time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

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

T = TypeVar("T")

_DATA = b"data:"
_DONE = b"[DONE]"
_SHORT = 16
_UNFINISHED = b'"finish_reason":null'
"""Quotes stand in a JSON text with a backslash before them, so no text can hold this, nor the name of a list."""
_RETRACTED = "abort"
_STREAM_ERROR = "stream_error"


class Chunk(Struct, frozen=True):
    """Tokens that were not there before. `logprobs` and `top_logprobs` only where they were asked for."""

    output_ids: list[int]
    logprobs: list[float] | None = None
    top_logprobs: list[list[tuple[float, int]]] | None = None


class _BrokenOff(Exception):
    """An event by which the gateway says that its connection to the engine was lost."""


class _Failure(Struct):
    error: Any


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


class _Repeated(Generic[T]):
    """One list of a reply that every event repeats as it was, and goes on with."""

    def __init__(self, name: str, entry: type[T], *, depth: int) -> None:
        """`depth` is how many lists within each other each entry is."""
        self._head = b'"%b":[' % name.encode()
        self._end = b"]" * (depth + 1)
        self._decode = msgspec.json.Decoder(list[entry]).decode  # type: ignore[valid-type]
        self._known = b""
        """The entries so far, as they stand between the list's brackets."""

    def new_in(self, event: bytes) -> list[T] | None:
        """The entries behind those that are known, which are known from now on; None where it has another form."""
        start = event.find(self._head) + len(self._head)
        behind = start + len(self._known)
        if start < len(self._head) or not event.startswith(self._known, start):
            return None
        if event.startswith(b"]", behind):
            return []
        first = behind + bool(self._known)
        last = event.find(self._end, first) + len(self._end) - 1
        if last < first or event[behind:first] not in (b"", b","):
            return None
        try:
            new = self._decode(b"[%b]" % event[first:last])
        except msgspec.DecodeError:
            return None
        self._known = event[start:last]
        return new

    def learn(self, event: bytes) -> None:
        """Know what it has, which was read otherwise."""
        self._known = b""
        self.new_in(event)


class StreamedReply:
    """Collects a reply from its events; `reply` is the whole once the last has come."""

    def __init__(self, *, with_logprobs: bool) -> None:
        self.reply: Reply | None = None
        self.broken = ""
        """Reason that the gateway gives for its lost connection to the engine; empty while there is none."""
        self._with_logprobs = with_logprobs
        self._repeats = False
        self._ids: list[int] = []
        self._tokens: list[Token] = []
        self._alternatives: list[list[Alternative]] = []
        self._newest = b""
        """The last event that was read."""
        self._repeated_ids = _Repeated("output_ids", int, depth=0)
        self._repeated_tokens = _Repeated("output_token_logprobs", Token, depth=1)
        self._repeated_alternatives = _Repeated("output_top_logprobs", list[Alternative], depth=2)

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
            try:
                self._read(event)
            except _BrokenOff as error:
                self.broken = str(error)
                break
            self._newest = event
        return self._chunk(before) if len(self._ids) > before else None

    def part(self) -> Reply | None:
        """The tokens handed over, as the reply to a request that was aborted then; None where there are none."""
        if not self._ids:
            return None
        part = self._whole(decode(self._newest))
        meta = msgspec.structs.replace(part.meta_info, finish_reason={"type": _RETRACTED})
        return Reply(output_ids=part.output_ids, meta_info=meta)

    def check_sent(self, ids: Sequence[int]) -> None:
        """Raises Refused unless `ids` begins with what was handed over."""
        if list(ids[: len(self._ids)]) != self._ids:
            raise Refused(Reason.STREAM_ORDER, "The stream changed tokens that it had sent.")

    def _read(self, event: bytes) -> None:
        if self._repeats and _UNFINISHED in event and self._read_new(event):
            return
        reply = self._decode(event)
        check_finish(reply.meta_info.finish_reason)
        count, total, seen = len(reply.output_ids), reply.meta_info.completion_tokens, len(self._ids)
        if self._repeats or (count == total and seen):
            self._repeats = True
            self._repeat_whole(reply, event)
        elif seen + count == total:
            self._extend(reply)
        elif not self._is_late_abort(reply):
            raise Refused(
                Reason.LENGTH_MISMATCH, f"{count} ids came after {seen} with completion_tokens {total} in the stream."
            )
        if reply.meta_info.finish_reason is not None:
            self.reply = self._whole(reply)

    def _read_new(self, event: bytes) -> bool:
        """Read what is behind what is known; False where the event has another form than expected."""
        ids = self._repeated_ids.new_in(event)
        if ids is None:
            return False
        if not self._with_logprobs:
            self._ids += ids
            return True
        tokens, rows = self._repeated_tokens.new_in(event), self._repeated_alternatives.new_in(event)
        if tokens is None or len(tokens) != len(ids) or (rows is None and self._alternatives):
            return False  # read whole, it tells what is wrong with it
        self._ids += ids
        self._tokens += tokens
        self._alternatives += rows or []
        return True

    def _repeat_whole(self, reply: Reply, event: bytes) -> None:
        self.check_sent(reply.output_ids)
        self._ids = reply.output_ids
        self._tokens = reply.meta_info.output_token_logprobs
        self._alternatives = reply.meta_info.output_top_logprobs or []
        if reply.meta_info.finish_reason is None:
            self._repeated_ids.learn(event)
        if reply.meta_info.finish_reason is None and self._with_logprobs:
            self._repeated_tokens.learn(event)
            self._repeated_alternatives.learn(event)

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
    """`{"error": {"message": str, "code": int}}` instead of a reply; smg's own have the type `stream_error`."""
    try:
        error = _decode_failure(event).error
    except (ValueError, RecursionError):
        return
    if not isinstance(error, dict):
        raise AbortedWithError(500, str(error))
    if error.get("type") == _STREAM_ERROR:
        raise _BrokenOff(str(error.get("message")))
    code = error.get("code")
    status = code if type(code) is int and 400 <= code < 600 else 500
    raise AbortedWithError(status, str(error.get("message") or "no message"))
