"""A session and what names it; lists of sessions and of turns."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn, Self, TypedDict

from rolloutfleet import wire
from rolloutfleet.fleet.proxies import Proxies, owner_of, paged
from rolloutfleet.grouping import grouped
from rolloutfleet.programs import Program, environ_of

if TYPE_CHECKING:
    from rolloutfleet.fleet.async_fleet import AsyncFleet

OnError = Literal["close", "delete"]
SamplingOption = wire.SessionSampling | dict[str, Any] | None
"""`defaults` and `overrides` of sampling parameters."""
PAGE: Final = 1000


class Chosen(TypedDict, total=False):
    """Which sessions are listed, by name; what is left out or None chooses nothing."""

    state: wire.SessionState | None
    outcome: wire.Outcome | None
    task_id: str | None
    group_id: str | None
    rewarded: bool | None
    """Whether some turn has a reward."""
    min_reward: float | None
    """Of the reward that a list shows."""
    max_reward: float | None
    min_branches: int | None
    min_turns: int | None
    max_turns: int | None
    min_tokens: int | None
    max_tokens: int | None
    min_version: int | None
    """Some token was sampled with this version or a later one; `max_version`: with this or an earlier one."""
    max_version: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Handle:
    """What an agent needs of its session, and the trainer to name it. Any OpenAI SDK takes `base_url` and `api_key`."""

    session_id: str
    api_key: str
    base_url: str
    group_id: str
    task_id: str | None = None

    def environ(self, *, for_: Program = "openai", model: str = "policy", home: Path | None = None) -> dict[str, str]:
        """Environment variables by which a program uses this session: one of the OpenAI SDKs, Claude Code or Codex.

        The latter two call the model `model`. Codex reads a file, which is written into the folder `home`, or into a
        new temporary one. A variable that has to be unset is empty.
        """
        return environ_of(for_, base_url=self.base_url, key=self.api_key, model=model, home=home)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__} can't be pickled, as its fleet belongs to its process: hand on its session_id, "
            "api_key and base_url; a fleet made there, of `fleet.whereabouts`, takes the session_id"
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.session_id})"


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class AsyncSession(Handle):
    """A session. `async with session:` closes it at the end of the block."""

    fleet: "AsyncFleet"
    on_error: OnError = "close"

    async def __aenter__(self) -> Self:
        self.fleet._in_blocks[self.session_id] = None
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        await self.fleet._end([self.session_id], error, self.on_error)

    async def reward(self, reward: float, *, turn_id: str | None = None, close: bool | None = None) -> wire.Rewarded:
        """Reward a turn, the main loop's last one unless it is named; `close` makes a trajectory of all turns so far.

        By default it does where no turn is named. The session goes on either way: `close_session` ends it.
        """
        return await self.fleet.reward(self, reward, turn_id=turn_id, close=close)

    async def close(self, *, outcome: wire.Outcome | None = None, reason: str | None = None) -> str | None:
        """End a session; returns the trajectory that was made of its open turns, None where there were none.

        `outcome` and `reason` are those of `Fleet.close_session`.
        """
        return await self.fleet.close_session(self, outcome=outcome, reason=reason)

    async def delete(self) -> None:
        """End a session, and discard all of it that is not leased."""
        await self.fleet.delete(self)

    async def touch(self) -> None:
        """Keep a session from going stale."""
        await self.fleet.touch(self)

    async def status(self) -> wire.SessionStatus:
        """The status of a session. Raises Gone, NotKnown."""
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
        for session in self.sessions:
            await session.__aenter__()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        first = self.sessions[0]
        await first.fleet._end([session.session_id for session in self.sessions], error, first.on_error)


class ListSessions(wire.ChosenSessions, wire.Request):
    """Which sessions are listed, and how."""

    newest: bool = False
    limit: wire.AtLeastOne | None = None


async def list_sessions(proxies: Proxies, asked: ListSessions) -> AsyncIterator[wire.SessionStatus]:
    """Those of every proxy, up to `limit`: each one's oldest first, or the newest of all.

    Raises NotEverywhere at the end, where some did not answer.
    """
    page = PAGE if asked.limit is None else min(asked.limit, PAGE)
    query: dict[str, str | int] = {name: str(value) for name, value in asked.said.items()}
    query |= {"limit": page, "order": "newest" if asked.newest else "oldest"}
    lists = proxies.pages("/sessions", wire.SessionList, query)
    count = 0
    async for sessions in (
        _newest_first(lists, page=page) if asked.newest else (found.sessions async for found in lists)
    ):
        for shown in sessions:
            if count == asked.limit:
                return
            count += 1
            yield shown


async def _newest_first(
    lists: AsyncIterator[wire.SessionList], *, page: int
) -> AsyncIterator[list[wire.SessionStatus]]:
    """Of lists that have up to `page` sessions of each proxy: those that no proxy can have a newer one than."""
    held: list[wire.SessionStatus] = []
    async for found in lists:
        held = sorted([*held, *found.sessions], key=lambda shown: -shown.created_at)
        full = [its for its in grouped(found.sessions, lambda shown: shown.ordinal).values() if len(its) == page]
        still_to_come = max((min(shown.created_at for shown in its) for its in full), default=float("-inf"))
        sure = [shown for shown in held if shown.created_at >= still_to_come]
        held = held[len(sure) :]
        yield sure


async def read_conversation(
    proxies: Proxies, session_id: str, *, branch: str | None, cursor: str | None, outline: bool
) -> AsyncIterator[wire.Conversation]:
    """The pages of one branch, which the first page names; an outline's of all, where none is named."""
    asked: dict[str, str] = {name: value for name, value in (("branch", branch), ("cursor", cursor)) if value}
    fixed = {"outline": "true"} if outline else {}
    while True:
        path = f"/sessions/{session_id}/conversation"
        page = await proxies.call("GET", path, wire.Conversation, owner=owner_of(session_id), query=asked | fixed)
        yield page
        if page.cursor is None or page.branch is None:
            return
        named = {} if outline and branch is None else {"branch": page.branch}
        asked = {**named, "cursor": page.cursor}


async def list_turns(proxies: Proxies, session_id: str) -> AsyncIterator[wire.Turn]:
    """In order of commit."""

    async def fetch(query: dict[str, str | int]) -> wire.TurnList:
        path = f"/sessions/{session_id}/turns"
        return await proxies.call("GET", path, wire.TurnList, owner=owner_of(session_id), query=query)

    async for page in paged(fetch, {"limit": PAGE}):
        for turn in page.turns:
            yield turn
