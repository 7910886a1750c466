"""`AsyncFleet`: a fleet as a trainer's asyncio code has it. docs/trainer.md shows how it is used.

`Fleet` is the same for code that blocks; it runs one of these.
"""

import logging
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Literal, Self, Unpack

from pydantic import JsonValue

from rolloutfleet.fleet.admission import HELD, OPEN, Admission, trajectory_ids
from rolloutfleet.fleet.arguments import (
    LOST_AFTER,
    RETRY_SECONDS,
    Named,
    by_lease,
    check_choice,
    check_export_options,
    checked,
    checked_options,
    name_of,
    number,
    positive,
)
from rolloutfleet.fleet.base import FleetBase, Options
from rolloutfleet.fleet.budget_slots import Slot
from rolloutfleet.fleet.exceptions import FleetClosed, FleetError
from rolloutfleet.fleet.exporting import AsyncExport
from rolloutfleet.fleet.leases import Leases
from rolloutfleet.fleet.outbox import Outbox
from rolloutfleet.fleet.prefetching import ExportOptions, OnExit
from rolloutfleet.fleet.proxies import FLEET, Proxies
from rolloutfleet.fleet.sessions import Handle, OnError, Sessions, SessionStatus
from rolloutfleet.fleet.staleness_filter import StalenessFilter
from rolloutfleet.fleet.trajectories import Leased
from rolloutfleet.fleet.waiting import Waiting
from rolloutfleet.fleet.weight_update import AsyncWeightUpdate
from rolloutfleet.fleet.weights import FleetWeights
from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.wire import (
    AgentMay,
    Audit,
    ExportStyle,
    GiveReward,
    LeftOpen,
    Pause,
    PauseMode,
    Proxy,
    Recover,
    Rewarded,
    SessionState,
    SetVersion,
    StartedSession,
    StartSessions,
    Turn,
    Weights,
)

log = logging.getLogger("rolloutfleet.fleet")

CLOSING_TIMEOUT: Final = 5.0


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

    async def reward(self, reward: float, *, turn_id: str | None = None, close: bool | None = None) -> Rewarded:
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

    async def status(self) -> SessionStatus:
        """What the fleet says of a session. Raises Gone, NotKnown."""
        return await self.fleet.status(self)

    def turns(self) -> AsyncIterator[Turn]:
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


class AsyncFleet(FleetBase):
    """A fleet. One event loop's; `async with` closes it.

    Every method raises FleetError's kinds: BadArgument before anything is asked, Refused for an error that a proxy
    answers with, Unreachable where none answers.
    """

    def __init__(self, where: Whereabouts, **options: Unpack[Options]) -> None:
        checked_options(options)
        self.whereabouts = where
        self.staleness = options.get("staleness")
        self._closed = False
        self._waiting = Waiting(options.get("progress"))
        self._proxies = Proxies(where, patience=options.get("patience", RETRY_SECONDS))
        self._outbox = Outbox()
        self._leases = Leases(self._proxies, self._outbox)
        self._weights = FleetWeights(self._proxies, self._outbox, self._waiting, changed=self._version_changed)
        self._admission = self._made_admission(options.get("lost_after", LOST_AFTER))
        self._sessions = Sessions(self._proxies, self._outbox, self._admission)
        self._filter = StalenessFilter(
            self._admission, too_old=options.get("too_old", "drop"), version=lambda: self._weights.version
        )

    def _made_admission(self, lost_after: float) -> Admission | None:
        if self.staleness is None:
            return None
        return Admission(
            self.staleness,
            self._proxies,
            version=lambda: self._weights.version,
            learn_version=self._weights.show,
            lost_after=lost_after,
            waiting=self._waiting,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Say what is still owed, for a few seconds, and close all connections. Sessions go on."""
        if self._closed:
            return
        self._closed = True
        if self._admission is not None:
            await self._admission.close()
        left = await self._outbox.flush(CLOSING_TIMEOUT)
        if left:
            log.warning("never heard: %s", "; ".join(left))
        await self._proxies.close()

    # The fleet

    async def proxies(self) -> list[Proxy]:
        """Ordinal, address and state of every proxy, now."""
        self._check_open()
        await self._proxies.refresh(now=True)
        return [self._proxies.known[ordinal] for ordinal in sorted(self._proxies.known)]

    async def audit(self) -> Audit:
        """What became of everything, over all proxies; `failed` names those that did not answer."""
        self._check_open()
        return await self._proxies.call("GET", "/audit", Audit, query=FLEET)

    # Sessions

    async def start_session(
        self,
        task_id: str | None = None,
        *,
        metadata: Mapping[str, JsonValue] | None = None,
        stale_after: float | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        agent_may: Iterable[AgentMay] = (),
        on_error: OnError = "close",
        timeout: float | None = None,
    ) -> AsyncSession:
        """Start a session, once the staleness budget has room; wait no longer than `timeout` for that.

        `stale_after` is in seconds. `on_error` is what becomes of it where its `with` block ends with an exception:
        `close` leaves what it has to be exported, `delete` discards it. Raises TookTooLong.
        """
        group = await self.start_group(
            1,
            task_id,
            metadata=metadata,
            stale_after=stale_after,
            max_turns=max_turns,
            max_tokens=max_tokens,
            agent_may=agent_may,
            on_error=on_error,
            timeout=timeout,
        )
        return group.sessions[0]

    async def start_group(
        self,
        size: int,
        task_id: str | None = None,
        *,
        metadata: Mapping[str, JsonValue] | None = None,
        stale_after: float | None = None,
        max_turns: int | None = None,
        max_tokens: int | None = None,
        agent_may: Iterable[AgentMay] = (),
        on_error: OnError = "close",
        timeout: float | None = None,
    ) -> AsyncGroup:
        """Start sessions for one task, which are exported together, once the staleness budget has room for all of them.

        `timeout`, `stale_after` and `on_error` are those of `start_session`. Raises TookTooLong.
        """
        self._check_open()
        limits = {"turns": max_turns, "tokens": max_tokens}
        values = {
            "task_id": task_id,
            "group_size": size,
            "metadata": None if metadata is None else dict(metadata),
            "stale_after": stale_after,
            "limits": {name: value for name, value in limits.items() if value is not None},
            "agent_may": list(agent_may),
        }
        asked = checked(StartSessions, values)
        check_choice("on_error", on_error, ("close", "delete"))
        if self._admission is not None:
            await self._weights.learn()
        started = await self._sessions.start(asked, timeout=timeout)

        def made(session: StartedSession) -> AsyncSession:
            return AsyncSession(
                session_id=session.session_id,
                api_key=session.api_key,
                base_url=session.base_url,
                group_id=started.group_id,
                task_id=task_id,
                fleet=self,
                on_error=on_error,
            )

        return AsyncGroup(started.group_id, tuple(map(made, started.sessions)))

    async def reward(
        self, session: Named, reward: float, *, turn_id: str | None = None, close: bool | None = None
    ) -> Rewarded:
        """Reward a turn, the last one unless it is named; `close` makes a trajectory of all turns so far.

        By default it does where no turn is named. The session goes on either way: `close_session` ends it.
        """
        self._check_open()
        asked = checked(GiveReward, {"reward": number(reward), "turn_id": turn_id, "close": close})
        return await self._sessions.reward(name_of(session), asked)

    async def close_session(self, session: Named) -> str | None:
        """End a session; returns the trajectory that was made of its open turns, None where there were none."""
        self._check_open()
        return await self._sessions.close(name_of(session))

    async def delete(self, session: Named) -> None:
        """End a session, and discard all of it that is not leased."""
        self._check_open()
        await self._sessions.delete(name_of(session))

    async def touch(self, session: Named) -> None:
        """Keep a session from going stale."""
        self._check_open()
        await self._sessions.touch(name_of(session))

    async def status(self, session: Named) -> SessionStatus:
        """What the fleet says of a session. Raises Gone, NotKnown."""
        self._check_open()
        return await self._sessions.status(name_of(session))

    async def statuses(self, sessions: Iterable[Named]) -> dict[str, SessionStatus | FleetError]:
        """Of each session what the fleet says, or the error that it answers with. Never raises for one of them."""
        self._check_open()
        return await self._sessions.statuses([name_of(session) for session in sessions])

    def sessions(
        self, *, state: SessionState | None = None, task_id: str | None = None
    ) -> AsyncIterator[SessionStatus]:
        """The sessions that the fleet has, whoever started them: of each proxy the oldest first.

        `state` and `task_id` choose among them; those that ended are listed until all of them has been acknowledged or
        discarded. Raises NotEverywhere at the end where a proxy did not answer.
        """
        self._check_open()
        check_choice("state", state, (None, "open", "closed", "deleted"))
        return self._sessions.listed(state=state, task_id=task_id)

    def turns(self, session: Named) -> AsyncIterator[Turn]:
        """A session's turns, in order of commit, with ids, log-probabilities and versions."""
        self._check_open()
        return self._sessions.turns(name_of(session))

    async def _end(self, session_ids: Sequence[str], error: BaseException | None, on_error: OnError) -> None:
        """The end of a `with` block. An exception of the block is never hidden by one of ours."""
        try:
            await self._sessions.end(session_ids, how="close" if error is None else on_error)
        except FleetError as problem:
            if error is None:
                raise
            log.warning("a session could not be ended: %s", problem)

    # Exports

    def export(
        self,
        count: int | None = None,
        *,
        wait: bool | None = None,
        session_ids: Iterable[Named] | None = None,
        group_id: str | None = None,
        style: ExportStyle = "concat",
        discount: float = 1.0,
        as_: Literal["tensors", "shards"] = "tensors",
        lease_seconds: float = 600.0,
        page: int = 16,
        prefetch: int = 1,
        timeout: float | None = None,
        grace: float = 5.0,
        on_exit: OnExit = "acknowledge",
    ) -> AsyncExport:
        """Closed trajectories of all proxies, leased ahead: a context manager, and an iterator within.

        With `count` it waits until so many have come, and finishes the group that it is at; with `wait=False` too it
        ends when nothing more is ready. Without, it ends when no proxy has anything ready; one that does not answer is
        waited for `grace` seconds. `session_ids` or `group_id` name what is wanted; `wait` then waits until they are
        all exportable. `page` trajectories are leased at once, and `prefetch` pages a proxy ahead of what is handed
        out. `timeout` bounds the wait for the next one.

        A block that ends well acknowledges what was handed out and gives the rest back; with an exception all is
        given back. `on_exit="keep"` leaves leased what was handed out, for `acknowledge` by whoever trains on it.
        """
        self._check_open()
        wanted = ExportOptions(
            count=count,
            wait=count is not None if wait is None else wait,
            session_ids=None if session_ids is None else tuple(map(name_of, session_ids)),
            group_id=group_id,
            style=style,
            discount=discount,
            shards=as_ == "shards",
            lease_seconds=lease_seconds,
            page=page,
            prefetch=prefetch,
            timeout=timeout,
            grace=grace,
            on_exit=on_exit,
        )
        check_export_options(wanted, as_)
        return AsyncExport(
            self._proxies,
            self._outbox,
            self._leases,
            wanted,
            staleness=self._filter,
            heard=self._weights.heard,
            waiting=self._waiting,
        )

    async def acknowledge(self, trajectories: Iterable[Leased]) -> None:
        """They are trained. For what an export with `on_exit="keep"` handed out, in this process or another.

        Raises LeaseLost where another lease has some of them by now.
        """
        self._check_open()
        given = list(trajectories)
        await self._leases.acknowledge(by_lease(given))
        self._filter.acknowledged(each.trajectory_id for each in given)

    async def release(self, trajectories: Iterable[Leased]) -> None:
        """They are given back: they can be exported again, with the same ids."""
        self._check_open()
        await self._leases.release(by_lease(trajectories))

    async def renew(self, trajectories: Iterable[Leased], *, lease_seconds: float = 600.0) -> None:
        """Their leases run anew from now. Raises Conflict where one is over."""
        self._check_open()
        await self._leases.renew(by_lease(trajectories), seconds=positive("lease_seconds", lease_seconds))

    # Weights

    async def weights(self) -> Weights:
        """Run, version, epoch and pause, the newest that any proxy knows of."""
        self._check_open()
        return await self._weights.show()

    async def set_version(self, version: int, *, epoch: int | None = None, strict: bool = False) -> Weights:
        """The engines have these weights now. Backwards is refused.

        Proxies that it did not reach are under `failed`; with `strict` that raises NotEverywhere.
        """
        self._check_open()
        checked(SetVersion, {"version": version, "epoch": epoch})
        return await self._weights.set_version(version, epoch=epoch, strict=strict)

    async def pause(
        self, mode: PauseMode = "abort", *, timeout: float = 60.0, epoch: int | None = None, strict: bool = False
    ) -> Weights:
        """Return when nothing of the fleet generates; where that fails, it is not left paused.

        The modes are in docs/weights.md; `timeout` is in seconds. `failed` and `strict` as in `set_version`.
        """
        self._check_open()
        checked(Pause, {"mode": mode, "timeout": number(timeout), "epoch": epoch})
        named = epoch if epoch is not None else (await self._weights.show()).epoch + 1
        return await self._weights.pause(mode=mode, timeout=timeout, epoch=named, strict=strict)

    async def resume(self, *, epoch: int | None = None, strict: bool = False) -> Weights:
        """Engines go on, then proxies. `engines_failed` names engines that did not confirm."""
        self._check_open()
        return await self._weights.resume(epoch=epoch, strict=strict)

    def weight_update(
        self, version: int, *, mode: PauseMode = "abort", timeout: float = 60.0, strict: bool = False
    ) -> AsyncWeightUpdate:
        """`async with fleet.weight_update(8):` put the weights of version 8 into the engines in the block.

        The fleet is paused before it; after it the version is set everywhere, and the fleet goes on. If the block
        fails, or what comes after it, the fleet stays paused: nobody knows what is in the engines. The exception says
        so.
        """
        self._check_open()
        checked(SetVersion, {"version": version})
        checked(Pause, {"mode": mode, "timeout": number(timeout)})
        return AsyncWeightUpdate(self, version, mode=mode, timeout=timeout, strict=strict)

    async def recover(
        self,
        version: int,
        *,
        run: int | None = None,
        newer: Literal["drop", "keep"] = "drop",
        open: LeftOpen = "keep",
        confirm: bool = False,
        held: int | None = None,
        strict: bool = False,
    ) -> Weights:
        """Go on from a checkpoint: its last step plus one is the `version`. Begins a new run, by default the next.

        What the fleet has of newer weights, or of a run that is over, is dropped or kept. To drop to less than half of
        the fleet's version needs `confirm=True`, where trajectories would go; else it raises Conflict
        (`recovery_too_far`), which says how many, and nothing has changed. Sessions that earlier runs left open are
        kept, closed or deleted, as `open` says.

        The budget is set to `version` batches and `held` ended sessions; unless that is given, those are counted that
        the fleet holds, and sessions that still run count as running. Where each rank has a budget of its own, give
        each its share.
        """
        self._check_open()
        values = {"version": version, "run": run if run is not None else 0, "newer": newer}
        asked = checked(Recover, {**values, "open": open, "confirm": confirm})
        if run is None:
            asked = asked.model_copy(update={"run": (await self._weights.show()).run + 1})
        answer = await self._weights.recover(asked, strict=strict)
        if self._admission is not None and self.staleness is not None:
            if held is None:
                held = await self._adopted(self._admission)
            self.staleness.on_version_recovered(version, held=held)
            self._admission.changed()
        return answer

    async def _adopted(self, admission: Admission) -> int:
        """Take over the sessions that the fleet holds; how many of them have ended."""
        await admission.poll_sessions()
        for ordinal in await self._proxies.ordinals():
            try:
                async for shown in admission.listed(ordinal):
                    if shown.state == OPEN:
                        admission.slots.adopt(shown.session_id, ordinal=ordinal, ended=False)
                    elif shown.fate in HELD:
                        left = trajectory_ids(shown)
                        admission.slots.adopt(shown.session_id, ordinal=ordinal, ended=True, left=left)
            except FleetError as error:
                log.warning("what proxy %d holds is not counted: %s", ordinal, error)
        return sum(admission.slots.slot(name) is Slot.ACCEPTED for name in admission.slots.sessions())

    def _version_changed(self) -> None:
        if self._admission is not None:
            self._admission.changed()

    def _check_open(self) -> None:
        if self._closed:
            raise FleetClosed("this fleet object has been closed")
