"""Sessions in a trainer's hands: started under the budget, rewarded, closed, deleted."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rolloutfleet.fleet.admission import Admission
from rolloutfleet.fleet.exceptions import FleetError, Gone, NotEverywhere, NotKnown
from rolloutfleet.fleet.outbox import Outbox
from rolloutfleet.fleet.proxies import FLEET, Answer, Proxies, each, new_key, owner_of
from rolloutfleet.wire import (
    Answered,
    Closed,
    GiveReward,
    Rewarded,
    Session,
    SessionList,
    SessionState,
    StartedSessions,
    StartSessions,
    Turn,
    TurnList,
)

log = logging.getLogger("rolloutfleet.fleet")

OnError = Literal["close", "delete"]
PAGE: Final = 1000

SessionStatus = Session
"""What the fleet says of a session."""


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

    def __init__(self, proxies: Proxies, outbox: Outbox, admission: Admission | None) -> None:
        self._proxies = proxies
        self._outbox = outbox
        self._admission = admission

    async def start(self, asked: StartSessions, *, timeout: float | None) -> StartedSessions:
        """A group, once there is room for it. Raises TookTooLong, Refused, Unreachable."""
        admission, size = self._admission, asked.group_size
        if admission is not None:
            await admission.admit(size, timeout=timeout)
        try:
            # A key belongs to one proxy, and where that is down another key's may be up.
            started = await self._proxies.call(
                "POST", "/sessions", StartedSessions, body=asked, key=new_key(), new_keys=True
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

    async def reward(self, session_id: str, asked: GiveReward) -> Rewarded:
        """Raises Refused: 400 `no_turn`, 409 `reward_frozen`, 410."""
        path = f"/sessions/{session_id}/reward"
        done = await self._call("POST", path, Rewarded, session_id, body=asked, key=new_key())
        if self._admission is not None:
            self._admission.slots.closed_trajectory(session_id, done.trajectory_id)
        return done

    async def close(self, session_id: str) -> str | None:
        """End it; the trajectory that this made of what was open, if anything was."""
        done = await self._call("POST", f"/sessions/{session_id}/close", Closed, session_id)
        if self._admission is not None:
            self._admission.slots.ended(session_id, left=[done.trajectory_id] if done.trajectory_id else [])
            self._admission.changed()
        return done.trajectory_id

    async def delete(self, session_id: str) -> None:
        """End it and discard what is not leased. One that is gone already is none the worse."""
        with contextlib.suppress(Gone):
            await self._proxies.send("DELETE", f"/sessions/{session_id}", owner=owner_of(session_id))
        if self._admission is not None:
            self._admission.slots.gone(session_id)
            self._admission.changed()

    async def end(self, session_ids: Iterable[str], *, how: OnError) -> None:
        """Close or delete them at the end of a block. What does not answer is told later, and not waited for."""
        names = list(session_ids)
        problems = [
            problem
            for problem in await each([self._end(name, how) for name in names])
            if isinstance(problem, FleetError)
        ]
        if problems:
            raise problems[0]

    async def _end(self, session_id: str, how: OnError) -> None:
        async def deliver() -> None:
            try:
                await (self.close(session_id) if how == "close" else self.delete(session_id))
            except (Gone, NotKnown):
                # Stale, lost, or deleted by its agent: it has ended.
                if self._admission is not None:
                    self._admission.slots.gone(session_id)
                    self._admission.changed()

        await self._outbox.deliver(f"the end of session {session_id}", deliver)

    async def touch(self, session_id: str) -> None:
        await self._call("POST", f"/sessions/{session_id}/touch", Answered, session_id)

    async def status(self, session_id: str) -> SessionStatus:
        return await self._call("GET", f"/sessions/{session_id}", Session, session_id)

    async def statuses(self, session_ids: Sequence[str]) -> dict[str, SessionStatus | FleetError]:
        """One each: what the fleet says, or the error that it answers with."""
        answers = await each([self.status(name) for name in session_ids])
        return dict(zip(session_ids, answers, strict=True))

    async def listed(self, *, state: SessionState | None, task_id: str | None) -> AsyncIterator[SessionStatus]:
        """Those of every proxy, each one's oldest first. Raises NotEverywhere at the end, where some did not answer."""
        asked = {"state": state, "task_id": task_id}
        query: dict[str, str | int] = {"limit": PAGE, **FLEET, **{name: of for name, of in asked.items() if of}}
        failed: dict[int, str] = {}
        while True:
            page = await self._proxies.call("GET", "/sessions", SessionList, query=query)
            failed.update({each.ordinal: each.error.message for each in page.failed})
            for shown in page.sessions:
                yield shown
            if page.cursor is None:
                break
            query["cursor"] = page.cursor
        if failed:
            raise NotEverywhere("the list of sessions", failed)

    async def turns(self, session_id: str) -> AsyncIterator[Turn]:
        """In order of commit."""
        cursor: str | None = None
        while True:
            query: dict[str, str | int] = {"limit": PAGE} | ({"cursor": cursor} if cursor else {})
            path = f"/sessions/{session_id}/turns"
            page = await self._proxies.call("GET", path, TurnList, query=query, owner=owner_of(session_id))
            for turn in page.turns:
                yield turn
            cursor = page.cursor
            if cursor is None:
                return

    async def _call(self, method: str, path: str, answer: type[Answer], session_id: str, **asked: Any) -> Answer:
        return await self._proxies.call(method, path, answer, owner=owner_of(session_id), **asked)
