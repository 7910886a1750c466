"""Sessions in a trainer's hands: started under the budget, rewarded, closed, deleted.

`AsyncSession` and `AsyncGroup`: sessions in the hands of a trainer's asyncio code.
"""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from rolloutfleet import wire
from rolloutfleet.fleet.admission import Admission
from rolloutfleet.fleet.exceptions import FleetError, Gone, NotKnown
from rolloutfleet.fleet.proxies import Answer, Proxies, each, new_key, owner_of, paged, raise_first

if TYPE_CHECKING:
    from rolloutfleet.fleet.async_fleet import AsyncFleet

log = logging.getLogger("rolloutfleet.fleet")

OnError = Literal["close", "delete"]
PAGE: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """What an agent needs of its session, and the trainer to name it. Any OpenAI SDK takes `base_url` and `api_key`."""

    session_id: str
    api_key: str
    base_url: str
    group_id: str
    task_id: str | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id})"


class Sessions:
    """Calls about sessions, which keep the budget's books. One event loop's."""

    def __init__(self, proxies: Proxies, admission: Admission | None) -> None:
        self._proxies = proxies
        self._admission = admission

    async def start(self, asked: wire.StartSessions, *, timeout: float | None) -> wire.StartedSessions:
        """A group, once there is room for it. Raises TookTooLong, Refused, Unreachable."""
        admission, size = self._admission, asked.group_size
        if admission is not None:
            await admission.admit(size, timeout=timeout)
        try:
            # A key belongs to one proxy, and where that is down another key's may be up.
            started = await self._proxies.call(
                "POST", "/sessions", wire.StartedSessions, body=asked, key=new_key(), new_keys=True
            )
        except BaseException:
            if admission is not None:
                admission.manager.on_rejected(size)
                admission.changed()
            raise
        if admission is not None:
            admission.slots.started(
                [session.session_id for session in started.sessions], ordinal=owner_of(started.group_id)
            )
        return started

    async def reward(self, session_id: str, asked: wire.GiveReward) -> wire.Rewarded:
        """Raises Refused: 400 `no_turn`, 409 `reward_frozen`, 410."""
        path = f"/sessions/{session_id}/reward"
        done = await self._call("POST", path, wire.Rewarded, session_id, body=asked, key=new_key())
        if self._admission is not None:
            self._admission.slots.closed_trajectory(session_id, done.trajectory_id)
        return done

    async def close(self, session_id: str) -> str | None:
        """End it; the trajectory that this made of what was open, if anything was."""
        done = await self._call("POST", f"/sessions/{session_id}/close", wire.Closed, session_id)
        if self._admission is not None:
            self._admission.slots.ended(session_id, left=[done.trajectory_id] if done.trajectory_id else [])
        return done.trajectory_id

    async def delete(self, session_id: str) -> None:
        """End it and discard what is not leased. One that is gone already is none the worse."""
        with contextlib.suppress(Gone):
            await self._proxies.send("DELETE", f"/sessions/{session_id}", owner=owner_of(session_id))
        if self._admission is not None:
            self._admission.slots.gone(session_id)

    async def end(self, session_ids: Iterable[str], *, how: OnError) -> None:
        """Close or delete them at the end of a block. What does not answer is told later, and not waited for."""
        raise_first(await each([self._end(name, how) for name in session_ids]))

    async def _end(self, session_id: str, how: OnError) -> None:
        async def deliver() -> None:
            try:
                await (self.close(session_id) if how == "close" else self.delete(session_id))
            except (Gone, NotKnown):
                # Stale, lost, or deleted by its agent: it has ended.
                if self._admission is not None:
                    self._admission.slots.gone(session_id)

        await self._proxies.outbox.deliver(f"the end of session {session_id}", deliver)

    async def touch(self, session_id: str) -> None:
        await self._call("POST", f"/sessions/{session_id}/touch", wire.Answered, session_id)

    async def status(self, session_id: str) -> wire.SessionStatus:
        return await self._call("GET", f"/sessions/{session_id}", wire.SessionStatus, session_id)

    async def statuses(self, session_ids: Sequence[str]) -> dict[str, wire.SessionStatus | FleetError]:
        """One each: what the fleet says, or the error that it answers with."""
        answers = await each([self.status(name) for name in session_ids])
        return dict(zip(session_ids, answers, strict=True))

    async def listed(
        self, *, state: wire.SessionState | None, task_id: str | None, newest: bool, limit: int | None
    ) -> AsyncIterator[wire.SessionStatus]:
        """Those of every proxy, up to `limit`: each one's oldest first, or the newest of all.

        Raises NotEverywhere at the end, where some did not answer.
        """
        asked = {"state": state, "task_id": task_id, "order": "newest" if newest else None}
        page = PAGE if limit is None else min(limit, PAGE)
        query: dict[str, str | int] = {"limit": page} | {name: of for name, of in asked.items() if of}
        lists = self._proxies.pages("/sessions", wire.SessionList, query)
        count = 0
        async for sessions in _newest_first(lists, page=page) if newest else (found.sessions async for found in lists):
            for shown in sessions:
                if count == limit:
                    return
                count += 1
                yield shown

    async def turns(self, session_id: str) -> AsyncIterator[wire.Turn]:
        """In order of commit."""
        path = f"/sessions/{session_id}/turns"
        pages = paged(lambda asked: self._call("GET", path, wire.TurnList, session_id, query=asked), {"limit": PAGE})
        async for page in pages:
            for turn in page.turns:
                yield turn

    async def _call(self, method: str, path: str, answer: type[Answer], session_id: str, **asked: Any) -> Answer:
        return await self._proxies.call(method, path, answer, owner=owner_of(session_id), **asked)


async def _newest_first(
    lists: AsyncIterator[wire.SessionList], *, page: int
) -> AsyncIterator[list[wire.SessionStatus]]:
    """Of lists that have up to `page` sessions of each proxy: those that no proxy can have a newer one than."""
    held: list[wire.SessionStatus] = []
    async for found in lists:
        held = sorted([*held, *found.sessions], key=lambda shown: -shown.created_at)
        of_proxy: dict[int, list[float]] = {}
        for shown in found.sessions:
            of_proxy.setdefault(shown.ordinal, []).append(shown.created_at)
        still_to_come = max((min(times) for times in of_proxy.values() if len(times) == page), default=float("-inf"))
        sure = [shown for shown in held if shown.created_at >= still_to_come]
        held = held[len(sure) :]
        yield sure


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class AsyncSession(Handle):
    """A session. `async with session:` closes it at the end of the block."""

    fleet: "AsyncFleet"
    on_error: OnError = "close"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.fleet._end([self.session_id], error, self.on_error)

    async def reward(self, reward: float, *, turn_id: str | None = None, close: bool | None = None) -> wire.Rewarded:
        """Reward a turn, the last one unless it is named; `close` makes a trajectory of all turns so far.

        By default it does where no turn is named. The session goes on either way: `close_session` ends it.
        """
        return await self.fleet.reward(self, reward, turn_id=turn_id, close=close)

    async def close(self) -> str | None:
        """End a session; returns the trajectory that was made of its open turns, None where there were none."""
        return await self.fleet.close_session(self)

    async def delete(self) -> None:
        """End a session, and discard all of it that is not leased."""
        await self.fleet.delete(self)

    async def touch(self) -> None:
        """Keep a session from going stale."""
        await self.fleet.touch(self)

    async def status(self) -> wire.SessionStatus:
        """What the fleet says of a session. Raises Gone, NotKnown."""
        return await self.fleet.status(self)

    def turns(self) -> AsyncIterator[wire.Turn]:
        """A session's turns, in order of commit, with ids, log-probabilities and versions."""
        return self.fleet.turns(self)


@dataclass(frozen=True, slots=True)
class AsyncGroup:
    """Sessions started together for one task. `async with group:` closes all of them at the end of the block."""

    group_id: str
    sessions: tuple[AsyncSession, ...]

    def __iter__(self) -> Iterator[AsyncSession]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = self.sessions[0]
        await first.fleet._end([session.session_id for session in self.sessions], error, first.on_error)
