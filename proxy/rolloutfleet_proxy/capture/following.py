"""A call that names earlier turns instead of telling again what they hold: the one that it goes on from, or those whose
items it refers to."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec

from rolloutfleet_proxy.capture.job import TurnJob
from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.errors import InvalidParameter, TurnNotFollowed
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.turns import Followed, load_answers, load_followed


async def whole(job: TurnJob, reader: Reader, *, most: int) -> TurnJob:
    """The job with the whole conversation as its request's messages; the very same where it has it. What is referred to
    has `most` bytes.

    Raises TurnNotFollowed where the session has no such turn, or shows it no more, and InvalidParameter for items that
    it does not have or show, or that are too many.
    """
    if job.request.is_whole:
        return job
    request, nbytes = await _filled(job, reader, most=most) if job.request.refers else (job.request, 0)
    if request.follows is not None:
        found = await _followed(job, request.follows, reader)
        request, nbytes = _joined(request, found), nbytes + found.nbytes
    if job.call.held is not None:
        job.call.held.grow(nbytes)
    return replace(job, request=request)


async def _filled(job: TurnJob, reader: Reader, *, most: int) -> tuple[TurnRequest, int]:
    """The request with the items that it refers to, and their bytes."""
    session, request = job.session, job.request
    names = session.turns_named(frozenset(request.refers))
    answers, nbytes = await reader.run(partial(load_answers, session=session.id, numbers=list(names), most=most))
    if nbytes > most:
        raise InvalidParameter(
            request.called("messages"), f"The answers that it refers to have more than {most} bytes: refer to fewer."
        )
    messages = request.filled({names[number]: answer for number, answer in answers.items()})
    return msgspec.structs.replace(request, messages=messages), nbytes


async def _followed(job: TurnJob, name: str, reader: Reader) -> Followed:
    found = await _load(job.session, name, reader)
    if found is None:
        field = job.request.called("follows")
        raise TurnNotFollowed(f"{field}: this session has no such turn to go on from.", param=field)
    return found


async def _load(session: Session, name: str, reader: Reader) -> Followed | None:
    number = session.turn_named(name)
    if number is None:
        return None
    try:
        return await reader.run(partial(load_followed, session=session.id, number=number))
    except LookupError:
        return None


def _joined(request: TurnRequest, followed: Followed) -> TurnRequest:
    own = request.own_messages
    messages = [*request.messages[:own], *followed.messages[followed.own :], *request.messages[own:]]
    placeholders = followed.placeholders + request.placeholders
    return msgspec.structs.replace(request, messages=messages, placeholders=placeholders)
