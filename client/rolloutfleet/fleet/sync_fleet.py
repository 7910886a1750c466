"""`Fleet`: `AsyncFleet` for code that blocks, also where an event loop runs already, as in a notebook.

Every method does what the one of the same name there does; only the waiting is different. docs/trainer.md shows how it
is used.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self, Unpack

from pydantic import JsonValue

from rolloutfleet.fleet.async_fleet import AsyncFleet, AsyncGroup, AsyncWeightUpdate, Counts, Framework, Named
from rolloutfleet.fleet.exceptions import FleetError
from rolloutfleet.fleet.exporting import AsyncExport, Names
from rolloutfleet.fleet.finding import Found, Options
from rolloutfleet.fleet.loop_thread import LoopThread
from rolloutfleet.fleet.pulling import OnExit
from rolloutfleet.fleet.sessions import Handle, OnError, SessionStatus
from rolloutfleet.fleet.trajectories import Leased, Trajectory
from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.staleness import StalenessManager
from rolloutfleet.wire import (
    AgentMay,
    Audit,
    ExportStatus,
    ExportStyle,
    LeftOpen,
    PauseMode,
    Proxy,
    Rewarded,
    SessionState,
    Turn,
    Weights,
)

if TYPE_CHECKING:
    from rolloutfleet.remote_tensors import RemoteTensors


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Session(Handle):
    """A session. `with session:` closes it at the end of the block."""

    fleet: "Fleet"
    on_error: OnError = "close"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.fleet._end([self.session_id], error, self.on_error)

    def reward(self, reward: float, *, turn_id: str | None = None, close: bool | None = None) -> Rewarded:
        """Reward a turn, the last one unless it is named; `close` makes a trajectory of all turns so far.

        By default it does where no turn is named. The session goes on either way: `close_session` ends it.
        """
        return self.fleet.reward(self, reward, turn_id=turn_id, close=close)

    def close(self) -> str | None:
        """End a session; returns the trajectory that was made of its open turns, None where there were none."""
        return self.fleet.close_session(self)

    def delete(self) -> None:
        """End a session, and discard all of it that is not leased."""
        self.fleet.delete(self)

    def touch(self) -> None:
        """Keep a session from going stale."""
        self.fleet.touch(self)

    def status(self) -> SessionStatus:
        """What the fleet says of a session. Raises Gone, NotKnown."""
        return self.fleet.status(self)

    def turns(self) -> list[Turn]:
        """A session's turns, in order of commit, with ids, log-probabilities and versions."""
        return self.fleet.turns(self)


@dataclass(frozen=True, slots=True)
class Group:
    """Sessions started together for one task. `with group:` closes all of them at the end of the block."""

    group_id: str
    sessions: tuple[Session, ...]

    def __iter__(self) -> Iterator[Session]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        first = self.sessions[0]
        first.fleet._end([session.session_id for session in self.sessions], error, first.on_error)


class Export:
    """`with fleet.export(…) as export: for trajectory in export: …`

    When the block ends well, what was handed out is acknowledged and the rest given back; when it ends with an
    exception, all of it is given back that was not acknowledged before.
    """

    def __init__(self, loop: LoopThread, export: AsyncExport) -> None:
        self._loop = loop
        self._export = export

    @property
    def statuses(self) -> dict[str, ExportStatus]:
        """Of each session that was named, or that an answer told of: leased, not_ready, leased_elsewhere, gone, or
        unknown, as it was when last asked."""
        return dict(self._export.statuses)

    @property
    def dropped(self) -> list[str]:
        """Trajectories that were too old, and so not handed out. They are acknowledged with the others."""
        return list(self._export.dropped)

    @property
    def leases(self) -> dict[str, frozenset[str]]:
        """The trajectories that it holds, by lease: leased, and neither acknowledged nor given back. What was leased
        ahead is among them."""
        return self._loop.run(self._leases())

    @property
    def unreachable(self) -> dict[int, str]:
        """Proxies that don't answer or ask to wait, and why: what they hold is still to come."""
        return self._export.unreachable

    def __enter__(self) -> Self:
        self._loop.run(self._export.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._export.__aexit__(kind, error, trace))

    def __iter__(self) -> Iterator[Trajectory]:
        return self

    def __next__(self) -> Trajectory:
        found = self._loop.run(self._next())
        if found is None:
            raise StopIteration
        return found

    def acknowledge(self, trajectories: Names) -> None:
        """They are trained, before the block ends. Raises BadArgument for what was not handed out, LeaseLost."""
        self._loop.run(self._export.acknowledge(trajectories))

    def release(self, trajectories: Names) -> None:
        """They are given back, to be exported again. Raises BadArgument for what was not handed out."""
        self._loop.run(self._export.release(trajectories))

    async def _leases(self) -> dict[str, frozenset[str]]:
        return self._export.leases

    async def _next(self) -> Trajectory | None:
        return await anext(self._export, None)


class WeightUpdate:
    """The whole of an update; see Fleet.weight_update."""

    def __init__(self, loop: LoopThread, update: AsyncWeightUpdate) -> None:
        self._loop = loop
        self._update = update

    @property
    def version(self) -> int:
        """The version that the engines get."""
        return self._update.version

    @property
    def epoch(self) -> int | None:
        """The pause's, once there is one."""
        return self._update.epoch

    @property
    def paused(self) -> Weights | None:
        """What the pause answered."""
        return self._update.paused

    def __enter__(self) -> Self:
        self._loop.run(self._update.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.run(self._update.__aexit__(kind, error, trace))


class Fleet(Found):
    """A fleet. Any thread's, of the process that made it; `with` closes it.

    Every method raises FleetError's kinds: BadArgument before anything is asked, Refused for an error that a proxy
    answers with, Unreachable where none answers.
    """

    def __init__(self, where: Whereabouts, **options: Unpack[Options]) -> None:
        self.whereabouts = where
        """What another process makes its own fleet object of."""
        self._loop = LoopThread()
        try:
            self._fleet = self._loop.run(_made(where, options))
        except FleetError:
            self._loop.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say what is still owed, for a few seconds, and close all connections. Sessions go on."""
        if self._loop.running:
            self._loop.run(self._fleet.close())
            self._loop.stop()

    # The fleet

    @property
    def staleness(self) -> StalenessManager | None:
        """The budget that sessions are started under."""
        return self._fleet.staleness

    @property
    def counts(self) -> Counts:
        """What this object has seen."""
        return self._fleet.counts

    @property
    def version(self) -> int:
        """The weights' version, as last heard. Raises NotHeardYet where nothing was: `weights()` asks."""
        return self._fleet.version

    @property
    def run(self) -> int:
        """The weights' run, as last heard. Raises NotHeardYet where nothing was: `weights()` asks."""
        return self._fleet.run

    @property
    def unreachable(self) -> dict[int, str]:
        """Proxies that did not answer when they were last asked, and why."""
        return self._fleet.unreachable

    @property
    def owed(self) -> list[str]:
        """What proxies that don't answer have still to be told; it is said again and again in the background."""
        return self._fleet.owed

    @property
    def unheard(self) -> frozenset[str]:
        """Trajectories that were acknowledged, and whose proxies could not be told yet."""
        return self._fleet.unheard

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines' addresses, where a local fleet's file names them; else none."""
        return self._fleet.engines

    def remote_tensors(self, *, framework: Framework = "torch") -> "RemoteTensors":
        """Tensors that the proxies keep, by reference: what an export `as_="shards"` brings (docs/remote-tensors.md).

        It waits in the calling thread, and is closed by whoever asked for it. Raises ImportError without torch.
        """
        return self._fleet.remote_tensors(framework=framework)

    def proxies(self) -> list[Proxy]:
        """Ordinal, address and state of every proxy, now."""
        return self._loop.run(self._fleet.proxies())

    def audit(self) -> Audit:
        """What became of everything, over all proxies; `failed` names those that did not answer."""
        return self._loop.run(self._fleet.audit())

    # Sessions

    def start_session(
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
    ) -> Session:
        """Start a session, once the staleness budget has room; wait no longer than `timeout` for that.

        `stale_after` is in seconds. `on_error` is what becomes of it where its `with` block ends with an exception:
        `close` leaves what it has to be exported, `delete` discards it. Raises TookTooLong.
        """
        group = self.start_group(
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

    def start_group(
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
    ) -> Group:
        """Start sessions for one task, which are exported together, once the staleness budget has room for all of them.

        `timeout`, `stale_after` and `on_error` are those of `start_session`. Raises TookTooLong.
        """
        started = self._loop.run(
            self._fleet.start_group(
                size,
                task_id,
                metadata=metadata,
                stale_after=stale_after,
                max_turns=max_turns,
                max_tokens=max_tokens,
                agent_may=agent_may,
                on_error=on_error,
                timeout=timeout,
            )
        )
        return self._group(started)

    def _group(self, group: AsyncGroup) -> Group:
        sessions = (
            Session(
                session_id=session.session_id,
                api_key=session.api_key,
                base_url=session.base_url,
                group_id=session.group_id,
                task_id=session.task_id,
                fleet=self,
                on_error=session.on_error,
            )
            for session in group
        )
        return Group(group.group_id, tuple(sessions))

    def reward(
        self, session: Named, reward: float, *, turn_id: str | None = None, close: bool | None = None
    ) -> Rewarded:
        """Reward a turn, the last one unless it is named; `close` makes a trajectory of all turns so far.

        By default it does where no turn is named. The session goes on either way: `close_session` ends it.
        """
        return self._loop.run(self._fleet.reward(session, reward, turn_id=turn_id, close=close))

    def close_session(self, session: Named) -> str | None:
        """End a session; returns the trajectory that was made of its open turns, None where there were none."""
        return self._loop.run(self._fleet.close_session(session))

    def delete(self, session: Named) -> None:
        """End a session, and discard all of it that is not leased."""
        self._loop.run(self._fleet.delete(session))

    def touch(self, session: Named) -> None:
        """Keep a session from going stale."""
        self._loop.run(self._fleet.touch(session))

    def status(self, session: Named) -> SessionStatus:
        """What the fleet says of a session. Raises Gone, NotKnown."""
        return self._loop.run(self._fleet.status(session))

    def statuses(self, sessions: Iterable[Named]) -> dict[str, SessionStatus | FleetError]:
        """Of each session what the fleet says, or the error that it answers with. Never raises for one of them."""
        return self._loop.run(self._fleet.statuses(sessions))

    def sessions(self, *, state: SessionState | None = None, task_id: str | None = None) -> list[SessionStatus]:
        """The sessions that the fleet has, whoever started them: of each proxy the oldest first.

        `state` and `task_id` choose among them; those that ended are listed until all of them has been acknowledged or
        discarded. Raises NotEverywhere where a proxy did not answer.
        """

        async def listed() -> list[SessionStatus]:
            return [shown async for shown in self._fleet.sessions(state=state, task_id=task_id)]

        return self._loop.run(listed())

    def turns(self, session: Named) -> list[Turn]:
        """A session's turns, in order of commit, with ids, log-probabilities and versions: all of them at once."""

        async def listed() -> list[Turn]:
            return [turn async for turn in self._fleet.turns(session)]

        return self._loop.run(listed())

    def _end(self, session_ids: list[str], error: BaseException | None, on_error: OnError) -> None:
        self._loop.run(self._fleet._end(session_ids, error, on_error))

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
    ) -> Export:
        """Closed trajectories of all proxies, leased ahead: a context manager, and an iterator within.

        With `count` it waits until so many have come, and finishes the group that it is at; with `wait=False` too it
        ends when nothing more is ready. Without, it ends when no proxy has anything ready; one that does not answer is
        waited for `grace` seconds. `session_ids` or `group_id` name what is wanted; `wait` then waits until they are
        all exportable. `page` trajectories are leased at once, and `prefetch` pages a proxy ahead of what is handed
        out. `timeout` bounds the wait for the next one.

        A block that ends well acknowledges what was handed out and gives the rest back; with an exception all is
        given back. `on_exit="keep"` leaves leased what was handed out, for `acknowledge` by whoever trains on it.
        """

        async def made() -> AsyncExport:
            return self._fleet.export(
                count,
                wait=wait,
                session_ids=session_ids,
                group_id=group_id,
                style=style,
                discount=discount,
                as_=as_,
                lease_seconds=lease_seconds,
                page=page,
                prefetch=prefetch,
                timeout=timeout,
                grace=grace,
                on_exit=on_exit,
            )

        return Export(self._loop, self._loop.run(made()))

    def acknowledge(self, trajectories: Iterable[Leased]) -> None:
        """They are trained. For what an export with `on_exit="keep"` handed out, in this process or another.

        Raises LeaseLost where another lease has some of them by now.
        """
        self._loop.run(self._fleet.acknowledge(trajectories))

    def release(self, trajectories: Iterable[Leased]) -> None:
        """They are given back: they can be exported again, with the same ids."""
        self._loop.run(self._fleet.release(trajectories))

    def renew(self, trajectories: Iterable[Leased], *, lease_seconds: float = 600.0) -> None:
        """Their leases run anew from now. Raises Conflict where one is over."""
        self._loop.run(self._fleet.renew(trajectories, lease_seconds=lease_seconds))

    # Weights

    def weights(self) -> Weights:
        """Run, version, epoch and pause, the newest that any proxy knows of."""
        return self._loop.run(self._fleet.weights())

    def set_version(self, version: int, *, epoch: int | None = None, strict: bool = False) -> Weights:
        """The engines have these weights now. Backwards is refused.

        Proxies that it did not reach are under `failed`; with `strict` that raises NotEverywhere.
        """
        return self._loop.run(self._fleet.set_version(version, epoch=epoch, strict=strict))

    def pause(
        self, mode: PauseMode = "abort", *, timeout: float = 60.0, epoch: int | None = None, strict: bool = False
    ) -> Weights:
        """Return when nothing of the fleet generates; where that fails, it is not left paused.

        The modes are in docs/weights.md; `timeout` is in seconds. `failed` and `strict` as in `set_version`.
        """
        return self._loop.run(self._fleet.pause(mode, timeout=timeout, epoch=epoch, strict=strict))

    def resume(self, *, epoch: int | None = None, strict: bool = False) -> Weights:
        """Engines go on, then proxies. `engines_failed` names engines that did not confirm."""
        return self._loop.run(self._fleet.resume(epoch=epoch, strict=strict))

    def weight_update(
        self, version: int, *, mode: PauseMode = "abort", timeout: float = 60.0, strict: bool = False
    ) -> WeightUpdate:
        """`with fleet.weight_update(8):` put the weights of version 8 into the engines in the block.

        The fleet is paused before it; after it the version is set everywhere, and the fleet goes on. If the block
        fails, or what comes after it, the fleet stays paused: nobody knows what is in the engines. The exception says
        so.
        """
        return WeightUpdate(self._loop, self._fleet.weight_update(version, mode=mode, timeout=timeout, strict=strict))

    def recover(
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
        return self._loop.run(
            self._fleet.recover(version, run=run, newer=newer, open=open, confirm=confirm, held=held, strict=strict)
        )


async def _made(where: Whereabouts, options: Options) -> AsyncFleet:
    return AsyncFleet(where, **options)
