"""Sessions of which one proxy of two gets every second: left to chance, all may fall to one."""

import contextlib
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import pytest

from rolloutfleet.fleet import AsyncFleet, AsyncSession, Session
from rolloutfleet.fleet.proxies import new_key
from rolloutfleet_proxy.cluster.placement import keeper_of


async def sessions_by_turns(fleet: AsyncFleet, number: int, *, task_id: str | None = None) -> list[AsyncSession]:
    """So many sessions, half of them on either proxy."""
    with starts_by_turns():
        sessions = [await fleet.start_session(task_id) for _ in range(number)]
    check_halves(sessions)
    return sessions


@contextlib.contextmanager
def starts_by_turns() -> Iterator[None]:
    """Sessions fall to one proxy and the other by turns."""
    keys = keys_by_turns()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("rolloutfleet.fleet.async_fleet.new_key", lambda: next(keys))
        yield


def check_halves(sessions: Sequence[AsyncSession | Session]) -> None:
    owners = Counter(session.session_id[:2] for session in sessions)
    assert owners == {"s0": len(sessions) / 2, "s1": len(sessions) / 2}


def keys_by_turns() -> Iterator[str]:
    """Idempotency-Keys of starts that fall to the first proxy, to the second, to the first, ..."""
    for ordinal in itertools.cycle((0, 1)):
        yield next(key for key in iter(new_key, None) if keeper_of(key, 2) == ordinal)
