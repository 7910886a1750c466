"""`Fleet`: `AsyncFleet` for code that blocks. docs/trainer.md shows how it is used.

Every method does what the one of the same name there does; only the waiting is different.
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
    PauseMode,
    Proxy,
    Rewarded,
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
        """As Fleet.reward."""
        return self.fleet.reward(self, reward, turn_id=turn_id, close=close)

    def close(self) -> str | None:
        """As Fleet.close_session."""
        return self.fleet.close_session(self)

    def delete(self) -> None:
        """As Fleet.delete."""
        self.fleet.delete(self)

    def touch(self) -> None:
        """As Fleet.touch."""
        self.fleet.touch(self)

    def status(self) -> SessionStatus:
        """As Fleet.status."""
        return self.fleet.status(self)

    def turns(self) -> list[Turn]:
        """As Fleet.turns."""
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
    """`with fleet.export(…) as export: for trajectory in export: …`. As AsyncExport."""

    def __init__(self, loop: LoopThread, export: AsyncExport) -> None:
        self._loop = loop
        self._export = export

    @property
    def statuses(self) -> dict[str, ExportStatus]:
        """As AsyncExport.statuses."""
        return dict(self._export.statuses)

    @property
    def dropped(self) -> list[str]:
        """As AsyncExport.dropped."""
        return list(self._export.dropped)

    @property
    def leases(self) -> dict[str, frozenset[str]]:
        """As AsyncExport.leases."""
        return self._loop.run(self._leases())

    @property
    def unreachable(self) -> dict[int, str]:
        """As AsyncExport.unreachable."""
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
        """As AsyncExport.acknowledge."""
        self._loop.run(self._export.acknowledge(trajectories))

    def release(self, trajectories: Names) -> None:
        """As AsyncExport.release."""
        self._loop.run(self._export.release(trajectories))

    async def _leases(self) -> dict[str, frozenset[str]]:
        return self._export.leases

    async def _next(self) -> Trajectory | None:
        return await anext(self._export, None)


class WeightUpdate:
    """As AsyncWeightUpdate."""

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
        """As AsyncFleet.close."""
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
        """The weights' version, as last heard."""
        return self._fleet.version

    @property
    def run(self) -> int:
        """The weights' run, as last heard."""
        return self._fleet.run

    @property
    def unreachable(self) -> dict[int, str]:
        """As AsyncFleet.unreachable."""
        return self._fleet.unreachable

    @property
    def owed(self) -> list[str]:
        """As AsyncFleet.owed."""
        return self._fleet.owed

    @property
    def unheard(self) -> frozenset[str]:
        """As AsyncFleet.unheard."""
        return self._fleet.unheard

    @property
    def engines(self) -> tuple[str, ...]:
        """As AsyncFleet.engines."""
        return self._fleet.engines

    def remote_tensors(self, *, framework: Framework = "torch") -> "RemoteTensors":
        """As AsyncFleet.remote_tensors."""
        return self._fleet.remote_tensors(framework=framework)

    def proxies(self) -> list[Proxy]:
        """As AsyncFleet.proxies."""
        return self._loop.run(self._fleet.proxies())

    def audit(self) -> Audit:
        """As AsyncFleet.audit."""
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
        """As AsyncFleet.start_session."""
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
        """As AsyncFleet.start_group."""
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
        """As AsyncFleet.reward."""
        return self._loop.run(self._fleet.reward(session, reward, turn_id=turn_id, close=close))

    def close_session(self, session: Named) -> str | None:
        """As AsyncFleet.close_session."""
        return self._loop.run(self._fleet.close_session(session))

    def delete(self, session: Named) -> None:
        """As AsyncFleet.delete."""
        self._loop.run(self._fleet.delete(session))

    def touch(self, session: Named) -> None:
        """As AsyncFleet.touch."""
        self._loop.run(self._fleet.touch(session))

    def status(self, session: Named) -> SessionStatus:
        """As AsyncFleet.status."""
        return self._loop.run(self._fleet.status(session))

    def statuses(self, sessions: Iterable[Named]) -> dict[str, SessionStatus | FleetError]:
        """As AsyncFleet.statuses."""
        return self._loop.run(self._fleet.statuses(sessions))

    def turns(self, session: Named) -> list[Turn]:
        """As AsyncFleet.turns, all of them at once."""

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
        """As AsyncFleet.export."""

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
        """As AsyncFleet.acknowledge."""
        self._loop.run(self._fleet.acknowledge(trajectories))

    def release(self, trajectories: Iterable[Leased]) -> None:
        """As AsyncFleet.release."""
        self._loop.run(self._fleet.release(trajectories))

    def renew(self, trajectories: Iterable[Leased], *, lease_seconds: float = 600.0) -> None:
        """As AsyncFleet.renew."""
        self._loop.run(self._fleet.renew(trajectories, lease_seconds=lease_seconds))

    # Weights

    def weights(self) -> Weights:
        """As AsyncFleet.weights."""
        return self._loop.run(self._fleet.weights())

    def set_version(self, version: int, *, epoch: int | None = None, strict: bool = False) -> Weights:
        """As AsyncFleet.set_version."""
        return self._loop.run(self._fleet.set_version(version, epoch=epoch, strict=strict))

    def pause(
        self, mode: PauseMode = "abort", *, timeout: float = 60.0, epoch: int | None = None, strict: bool = False
    ) -> Weights:
        """As AsyncFleet.pause."""
        return self._loop.run(self._fleet.pause(mode, timeout=timeout, epoch=epoch, strict=strict))

    def resume(self, *, epoch: int | None = None, strict: bool = False) -> Weights:
        """As AsyncFleet.resume."""
        return self._loop.run(self._fleet.resume(epoch=epoch, strict=strict))

    def weight_update(
        self, version: int, *, mode: PauseMode = "abort", timeout: float = 60.0, strict: bool = False
    ) -> WeightUpdate:
        """As AsyncFleet.weight_update."""
        return WeightUpdate(self._loop, self._fleet.weight_update(version, mode=mode, timeout=timeout, strict=strict))

    def recover(
        self,
        version: int,
        *,
        run: int | None = None,
        newer: Literal["drop", "keep"] = "drop",
        held: int | None = None,
        strict: bool = False,
    ) -> Weights:
        """As AsyncFleet.recover."""
        return self._loop.run(self._fleet.recover(version, run=run, newer=newer, held=held, strict=strict))


async def _made(where: Whereabouts, options: Options) -> AsyncFleet:
    return AsyncFleet(where, **options)
