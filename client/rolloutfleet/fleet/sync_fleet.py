"""`Fleet`: `AsyncFleet` for code that blocks, also where an event loop runs already, as in a notebook.

Every method does what the one of the same name there does; only the waiting is different. docs/trainer.md shows how it
is used.
"""

from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Unpack

from rolloutfleet.fleet.async_fleet import AsyncFleet
from rolloutfleet.fleet.base import FleetBase, Options
from rolloutfleet.fleet.blocking import Blocking, BlockingIterator, LoopThread, RunningLoop, blocking, listing, wrapping
from rolloutfleet.fleet.events import AsyncEvents, Event
from rolloutfleet.fleet.exporting import AsyncExport
from rolloutfleet.fleet.rollouts.episodes import EpisodeGroup, is_positive
from rolloutfleet.fleet.rollouts.rollout import AsyncRollout
from rolloutfleet.fleet.sessions import AsyncGroup, AsyncSession, Handle, OnError
from rolloutfleet.fleet.trajectories import Trajectory
from rolloutfleet.fleet.weights import AsyncWeightUpdate
from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.wire import ExportStatus, Weights


@dataclass(frozen=True, repr=False, kw_only=True)
class Session(Blocking, Handle):
    """A session. `with session:` closes it at the end of the block."""

    fleet: "Fleet"
    on_error: OnError = "close"
    _loop: LoopThread
    _asynchronous: AsyncSession

    reward = blocking(AsyncSession.reward)
    close = blocking(AsyncSession.close)
    delete = blocking(AsyncSession.delete)
    touch = blocking(AsyncSession.touch)
    status = blocking(AsyncSession.status)
    turns = listing(AsyncSession.turns)


@dataclass(frozen=True)
class Group(Blocking):
    """Sessions started together for one task. `with group:` closes all of them at the end of the block."""

    group_id: str
    sessions: tuple[Session, ...]
    _loop: LoopThread
    _asynchronous: AsyncGroup

    def __iter__(self) -> Iterator[Session]:
        return iter(self.sessions)

    def __len__(self) -> int:
        return len(self.sessions)


class Export(BlockingIterator[Trajectory]):
    """`with fleet.export(…) as export: for trajectory in export: …`

    When the block ends well, what was handed out is acknowledged and the rest given back; when it ends with an
    exception, all of it is given back that was not acknowledged before.
    """

    _asynchronous: AsyncExport

    @property
    def statuses(self) -> dict[str, ExportStatus]:
        """Of each session that was named, or that an answer told of: leased, damaged, not_ready, leased_elsewhere,
        evaluation, gone, or unknown, as it was when last asked."""
        return dict(self._asynchronous.statuses)

    @property
    def dropped(self) -> list[str]:
        """Trajectories that were too old, and so not handed out. They are acknowledged with the others."""
        return list(self._asynchronous.dropped)

    @property
    def leases(self) -> dict[str, frozenset[str]]:
        """The trajectories that it holds, by lease: leased, and neither acknowledged nor given back. What was leased
        ahead is among them."""
        return self._asynchronous.leases

    @property
    def unreachable(self) -> dict[int, str]:
        """Proxies that don't answer or ask to wait, and why: what they hold is still to come."""
        return self._asynchronous.unreachable

    acknowledge = blocking(AsyncExport.acknowledge)
    release = blocking(AsyncExport.release)


class Events(BlockingIterator[Event]):
    """`with fleet.events() as events: for event in events: …`"""

    _asynchronous: AsyncEvents

    @property
    def waiting(self) -> int:
        """Events that have come and were not taken."""
        return self._asynchronous.waiting


class Rollout(BlockingIterator[EpisodeGroup]):
    """`with fleet.rollout(agent, tasks) as episodes: for group in episodes: …`

    A block that ends well acknowledges the groups that were handed out, or keeps them leased; with an exception they
    are given back. Agents that still run are ended, and their sessions closed as aborted.
    """

    _asynchronous: AsyncRollout

    def __init__(self, fleet: "Fleet", asynchronous: AsyncRollout) -> None:
        super().__init__(fleet, asynchronous)
        asynchronous._shown = partial(_blocking_session, fleet)

    acknowledge = blocking(AsyncRollout.acknowledge)

    def metrics(self, *, passes: Callable[[float], bool] = is_positive) -> dict[str, float]:
        """Figures of all groups that were handed out (`rollouts.metrics`). `passes` says which reward counts for
        pass@K."""
        return self._asynchronous.metrics(passes=passes)


class WeightUpdate(Blocking):
    """The whole of an update; see Fleet.weight_update."""

    _asynchronous: AsyncWeightUpdate

    @property
    def version(self) -> int:
        """The version that the engines get."""
        return self._asynchronous.version

    @property
    def epoch(self) -> int | None:
        """The pause's, once there is one."""
        return self._asynchronous.epoch

    @property
    def paused(self) -> Weights | None:
        """What the pause answered."""
        return self._asynchronous.paused


def _session(fleet: "Fleet", starting: Coroutine[Any, Any, AsyncSession]) -> Session:
    return _blocking_session(fleet, fleet._loop.run(starting))


def _group(fleet: "Fleet", starting: Coroutine[Any, Any, AsyncGroup]) -> Group:
    group = fleet._loop.run(starting)
    sessions = tuple(_blocking_session(fleet, session) for session in group)
    return Group(group.group_id, sessions, fleet._loop, group)


def _blocking_session(fleet: "Fleet", session: AsyncSession) -> Session:
    known = {field.name: getattr(session, field.name) for field in fields(session)}
    return Session(**{**known, "fleet": fleet}, _loop=fleet._loop, _asynchronous=session)


class Fleet(Blocking, FleetBase):
    """A fleet. Any thread's, of the process that made it; `with` closes it.

    Every method raises FleetError's kinds: BadArgument before anything is asked, Refused for an error that a proxy
    answers with, Unreachable where none answers.
    """

    _asynchronous: AsyncFleet

    def __init__(self, where: Whereabouts, **options: Unpack[Options]) -> None:
        self._stand_for(AsyncFleet(where, **options), LoopThread())

    def _stand_for(self, other: AsyncFleet, loop: LoopThread) -> None:
        self._asynchronous, self._loop = other, loop
        self.whereabouts, self.staleness = other.whereabouts, other.staleness
        self._proxies, self._weights, self._filter = other._proxies, other._weights, other._filter

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Say what is still owed, for a few seconds, and close all connections. Sessions go on."""
        if self._loop.running:
            self._loop.run(self._asynchronous.close())
            self._loop.stop()

    proxies = blocking(AsyncFleet.proxies)
    audit = blocking(AsyncFleet.audit)
    stats = blocking(AsyncFleet.stats)

    start_session = wrapping(AsyncFleet.start_session, _session)
    start_group = wrapping(AsyncFleet.start_group, _group)
    reward = blocking(AsyncFleet.reward)
    close_session = blocking(AsyncFleet.close_session)
    delete = blocking(AsyncFleet.delete)
    touch = blocking(AsyncFleet.touch)
    status = blocking(AsyncFleet.status)
    statuses = blocking(AsyncFleet.statuses)
    sessions = listing(AsyncFleet.sessions)
    turns = listing(AsyncFleet.turns)
    conversation = listing(AsyncFleet.conversation)
    events = wrapping(AsyncFleet.events, Events)

    export = wrapping(AsyncFleet.export, Export)
    rollout = wrapping(AsyncFleet.rollout, Rollout)
    annotate = blocking(AsyncFleet.annotate)
    acknowledge = blocking(AsyncFleet.acknowledge)
    release = blocking(AsyncFleet.release)
    renew = blocking(AsyncFleet.renew)
    end_lease = blocking(AsyncFleet.end_lease)
    export_file = blocking(AsyncFleet.export_file)

    dumps = listing(AsyncFleet.dumps)
    fetch_dump = blocking(AsyncFleet.fetch_dump)
    import_dumps = blocking(AsyncFleet.import_dumps)

    weights = blocking(AsyncFleet.weights)
    set_version = blocking(AsyncFleet.set_version)
    pause = blocking(AsyncFleet.pause)
    resume = blocking(AsyncFleet.resume)
    weight_update = wrapping(AsyncFleet.weight_update, WeightUpdate)
    load_from_disk = blocking(AsyncFleet.load_from_disk)
    recover = blocking(AsyncFleet.recover)


def blocking_sessions(fleet: AsyncFleet) -> Callable[[AsyncSession], Session]:
    """Makes sessions for threads beside the event loop that runs now, the fleet's."""
    twin = Fleet.__new__(Fleet)
    twin._stand_for(fleet, RunningLoop())
    return partial(_blocking_session, twin)
