"""Starting sessions on this proxy: is there room, what is a retry given, and where do agents go."""

from functools import partial

from pydantic import BaseModel

from rolloutfleet.spec import LimitsSpec
from rolloutfleet.wire import StartedSession, StartedSessions, StartSessions
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DomainError, Draining, InvalidParameter, NoRoom, SessionDeleted
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.refusals import gone
from rolloutfleet_proxy.sessions import claims, tombstones
from rolloutfleet_proxy.sessions.admission import Places
from rolloutfleet_proxy.sessions.idempotency import KeyedCall, keyed_call, recall, remember
from rolloutfleet_proxy.sessions.sessions import NewSessions, Started, replace_keys, start
from rolloutfleet_proxy.store.transaction import Transaction

SCOPE = "start"
KEPT_AT_ONCE = 64
"""Sessions of a new group that are held in memory from the start: a large one must not push out those in use."""


class _Names(BaseModel):
    """What a retry needs to know; keys are never kept."""

    group: str
    sessions: list[str]


async def start_here(proxy: Proxy, asked: StartSessions, idempotency_key: str | None) -> StartedSessions:
    """Start a group of sessions.

    Raises NoRoom, Draining while it drains, IdempotencyKeyReused for a key used with another body, and
    PlacedElsewhere where this proxy gave the key's start to another.
    """
    most = proxy.settings.sessions.limits.sessions
    if most is not None and asked.group_size > most:
        raise InvalidParameter(
            "group_size", f"A proxy of this fleet has room for {most} sessions, and a group stays together."
        )
    body = b"" if idempotency_key is None else asked.model_dump_json().encode()
    call = keyed_call(idempotency_key, scope=SCOPE, body=body)
    with proxy.admission.places(asked.group_size) as places:
        work = partial(
            _start,
            owner=proxy.owner,
            asked=asked,
            limits=_limits(asked, proxy.settings.sessions.limits),
            call=call,
            places=places,
            draining=proxy.drains.draining,
        )
        names, started, is_new = await proxy.writer.run(work)
    failpoints.reach(failpoints.AFTER_START)
    if is_new:
        for session in started[:KEPT_AT_ONCE]:
            if session.session is not None:
                proxy.sessions.started(session.session)
    else:
        for session in started:
            proxy.sessions.change_key(session.name, session.key)
    sessions = [
        StartedSession(session_id=session.name, api_key=session.key, base_url=base_url(proxy, session.name))
        for session in started
    ]
    alone = sessions[0].model_dump() if asked.group_size == 1 else {}
    return StartedSessions(group_id=names.group, sessions=sessions, ordinals=[proxy.owner.ordinal], **alone)


def base_url(proxy: Proxy, session: str) -> str:
    """What an OpenAI SDK takes: the public address where there is one, else the owner's own."""
    address = proxy.settings.public_url or proxy.settings.address_of(proxy.owner.ordinal)
    return f"{address}/sessions/{session}/v1"


def _start(
    transaction: Transaction,
    *,
    owner: Owner,
    asked: StartSessions,
    limits: dict[str, int],
    call: KeyedCall | None,
    places: Places,
    draining: bool,
) -> tuple[_Names, list[Started], bool]:
    """(group and names, sessions, whether they are new). A retry gets the same with new keys; the old ones are void.

    A retry needs no room, and a drain does not refuse it.
    """
    before = None if call is None else recall(transaction, call)
    if before is not None:
        names = _Names.model_validate_json(before)
        return names, _again(transaction, owner, names.sessions), False
    if call is not None:
        claims.check(transaction, call.key)
    if draining:
        raise Draining("This proxy is draining and takes no new sessions.")
    if not places.take():
        raise NoRoom("This proxy has no room for more sessions now.")
    group, started = start(
        transaction,
        owner,
        NewSessions(
            count=asked.group_size,
            task_id=asked.task_id,
            metadata=asked.metadata or None,
            limits=limits,
            agent_may=asked.agent_may,
            stale_after=asked.stale_after,
        ),
    )
    names = _Names(group=group, sessions=[session.name for session in started])
    if call is not None:
        remember(transaction, call, names.model_dump_json())
    return names, started, True


def _limits(asked: StartSessions, fleet: LimitsSpec) -> dict[str, int]:
    """The session's own limits, and the fleet's where it has none."""
    ours = {"turns": fleet.turns, "tokens": fleet.tokens}
    return {name: n for name, n in (ours | asked.limits.model_dump(exclude_none=True)).items() if n is not None}


def _again(transaction: Transaction, owner: Owner, names: list[str]) -> list[Started]:
    try:
        return replace_keys(transaction, owner, names)
    except LookupError as error:
        raise _over(transaction, str(error)) from None


def _over(transaction: Transaction, name: str) -> DomainError:
    """What became of a session that a start made, as its own calls are told."""
    tombstone = tombstones.find(transaction, column="name", value=name)
    if tombstone is not None:
        return gone(tombstone)
    return SessionDeleted(f"This Idempotency-Key started session {name}, which is gone by now.")
