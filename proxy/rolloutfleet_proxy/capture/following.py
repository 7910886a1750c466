"""A call that names the turn it goes on from, instead of telling the conversation again."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import msgspec

from rolloutfleet_proxy.capture.job import TurnJob
from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.errors import TurnNotFollowed
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.turns import Followed, load_followed


async def whole(job: TurnJob, reader: Reader) -> TurnJob:
    """The job with the whole conversation as its request's messages; the very same where it has it.

    Raises TurnNotFollowed where the session has no such turn, or shows it no more.
    """
    name = job.request.follows
    if name is None:
        return job
    found = await _load(job.session, name, reader)
    if found is None:
        field = job.request.called("follows")
        raise TurnNotFollowed(f"{field}: this session has no such turn to go on from.", param=field)
    if job.call.held is not None:
        job.call.held.grow(found.nbytes)
    return replace(job, request=_joined(job.request, found))


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
