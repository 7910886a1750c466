"""What a trainer says of turns afterwards, taken in: read, checked and kept, all of a call or nothing."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import numpy as np

from rolloutfleet.tensors import LENGTH_BYTES, Form
from rolloutfleet.wire import NOTE_BYTES, NOTES, SERIES_NAME, AnnotatedSession
from rolloutfleet_proxy.domain.errors import InvalidParameter, InvalidRequest, NoRoom
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.shards.header import Header, NotTensors, header_length, read_header
from rolloutfleet_proxy.store.annotations import Annotations, Series, annotate
from rolloutfleet_proxy.store.store import Store

_SHOWN: Final = 80
"""Characters of a wrong name in a message."""
_TURN: Final = re.compile(r"[!-~]{1,128}")
_decode_notes = msgspec.json.Decoder(dict[str, str]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnotationService:
    """Annotations of this proxy's sessions."""

    store: Store
    admission: Admission

    async def annotate(self, body: bytes, find: Callable[[], Awaitable[Session]]) -> AnnotatedSession:
        """Keep what a body says of the turns of the session that is found once it has been read: nothing comes between
        that look at the session and the write, for which a session that is being dumped would have to wait.

        Raises InvalidRequest for what is none, NoRoom, what `find` does, and as `store.annotations.annotate`.
        """
        given = await asyncio.to_thread(read_annotations, body)
        with self.admission.bytes_on_their_way(len(body)) as fits:
            if not fits:
                raise NoRoom("There is no room for annotations now: store and shards have reached limits.bytes.")
            self.admission.check_disk()
            session = await find()
            await self.store.write(partial(annotate, session=session.id, given=given))
        return AnnotatedSession(
            session_id=session.name,
            series=len(given.series),
            notes=len(given.notes),
            ordinals=[self.store.owner.ordinal],
        )


def read_annotations(body: bytes) -> Annotations:
    """What a body says, as far as it can be judged without the turns. Raises InvalidRequest.

    A NaN says nothing of its token, and is taken; an infinity is none of the numbers that trainers mean.
    """
    try:
        header, data = _split(body)
    except NotTensors as wrong:
        about = "" if wrong.tensor is None else f", tensor {wrong.tensor[:_SHOWN]!r}"
        raise InvalidRequest(f"The body is not safetensors{about}: {wrong}.", param=_ascii(wrong.tensor)) from None
    series = []
    end = 0
    for name, form in header.tensors.items():
        start, end = end, end + form.nbytes
        series.append(_series(name, form, data[start:end]))
    return Annotations(series, _notes(header.metadata))


def _split(body: bytes) -> tuple[Header, memoryview]:
    if len(body) < LENGTH_BYTES:
        raise NotTensors("it ends within its header")
    end = LENGTH_BYTES + header_length(body[:LENGTH_BYTES])
    if len(body) < end:
        raise NotTensors("it ends within its header")
    header, data = read_header(body[LENGTH_BYTES:end]), memoryview(body)[end:]
    size = sum(form.nbytes for form in header.tensors.values())
    if size != len(data):
        raise NotTensors(f"its tensors have {size} bytes, and {len(data)} stand behind its header")
    return header, data


def _series(name: str, form: Form, data: memoryview) -> Series:
    turn, _, series = name.rpartition("/")
    if not _TURN.fullmatch(turn) or not SERIES_NAME.fullmatch(series):
        raise _wrong(name, "is not named TURN_ID/SERIES, with a series of 1 to 64 letters of A-Za-z0-9_.-.")
    if form.dtype != "float32" or len(form.shape) != 1:
        kind = f"{form.dtype} of shape {list(form.shape)}"
        raise _wrong(name, f"is {kind}: it has to be float32 with one number for each output token of the turn.")
    if np.isinf(np.frombuffer(data, "<f4")).any():
        raise _wrong(name, "has an infinity: numbers are finite, or NaN.")
    return Series(turn, series, data)


def _wrong(name: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Tensor {name[:_SHOWN]!r} {why}", param=_ascii(name))


def _notes(metadata: Any) -> dict[str, str]:
    if metadata is None:
        return {}
    if not isinstance(metadata, dict) or not isinstance(text := metadata.get(NOTES, "{}"), str):
        raise InvalidParameter(NOTES, f"The header's __metadata__ is an object of texts, and {NOTES} the one of notes.")
    try:
        notes = _decode_notes(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise InvalidParameter(NOTES, f"{NOTES} is not JSON of the form {{TURN_ID: text}}.") from None
    for turn, note in notes.items():
        if not _TURN.fullmatch(turn):
            raise InvalidParameter(NOTES, f"{NOTES}: {turn[:_SHOWN]!r} is not a turn's id.")
        if (size := len(note.encode())) > NOTE_BYTES:
            raise InvalidParameter(NOTES, f"{NOTES}: that of {turn[:_SHOWN]!r} has {size} bytes; at most {NOTE_BYTES}.")
    return notes


def _ascii(name: str | None) -> str | None:
    """A name as `param`, where it is none that would have to be escaped."""
    return name[:_SHOWN] if name is not None and name.isascii() and name.isprintable() else None
