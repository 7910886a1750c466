"""`AsyncFleet.rollout`: groups of sessions started for tasks, an agent run in each, and what they left exported.

A group goes through it in this order: its sessions start, under the fleet's budget; an agent works in each, and is
rewarded when it has ended; `after_each` sees the group; its sessions are closed; its trajectories are leased; it is
handed out. At the end of the block what was handed out is acknowledged.
"""

import asyncio
import logging
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Self, SupportsFloat

import httpx
from pydantic import ConfigDict, Field, SkipValidation

from rolloutfleet.broadcast import Broadcast
from rolloutfleet.fleet.arguments import valid
from rolloutfleet.fleet.base import SessionTerms
from rolloutfleet.fleet.ending import ending_of, linked
from rolloutfleet.fleet.exceptions import BadArgument, FleetError, Unreachable
from rolloutfleet.fleet.exporting import AsyncExport
from rolloutfleet.fleet.leases import Held
from rolloutfleet.fleet.prefetching import OnExit
from rolloutfleet.fleet.proxies import each, raise_first, repeat_by_owner
from rolloutfleet.fleet.rollouts.agents import Agent, NotStarted, call, is_async
from rolloutfleet.fleet.rollouts.episodes import Episode, EpisodeGroup, Figures, is_positive, metrics
from rolloutfleet.fleet.sessions import AsyncGroup, AsyncSession
from rolloutfleet.fleet.trajectories import Trajectory, session_of
from rolloutfleet.tasks import end_tasks
from rolloutfleet.wire import AboveZero, Answered, AtLeastOne, CloseSession, Request, Whole

if TYPE_CHECKING:
    from rolloutfleet.fleet.async_fleet import AsyncFleet

log = logging.getLogger("rolloutfleet.fleet")

RETRIED: Final[tuple[type[BaseException], ...]] = (FleetError, ConnectionRefusedError, httpx.ConnectError, NotStarted)
"""Exceptions for which an agent is run again, unless `retry_on` names others."""
GREEDY: Final[Mapping[str, Any]] = {"sampling": {"overrides": {"temperature": 0.0}}}
"""Terms of sessions that are evaluations."""
STALE_AFTER: Final = 120.0
"""Seconds without a touch after which a session of a rollout goes stale: its trainer is gone."""
TOUCHES: Final = 6
"""A session is touched this often in that time."""
TOUCH_TIMEOUT: Final = 10.0
WATCHED: Final = 100
"""The newest episodes of a fleet object, by which it is told whether too many fail."""
FEWEST: Final = 10
"""Episodes before that is told, unless all have failed at the end of a rollout."""


_NO_MORE: Final = object()
_FLOAT: Final = re.compile(r"\s*[-+]?\d*\.?\d+\s*")


class TooManyFailures(FleetError):
    """More of the newest episodes failed than `max_failures` allows."""

    def __init__(self, reasons: Counter[str], *, of: int) -> None:
        self.reasons = dict(reasons)
        """The number of failed episodes, by reason."""
        said = "; ".join(f"{count} x {reason}" for reason, count in reasons.most_common(3))
        super().__init__(f"{reasons.total()} of the last {of} episodes failed (max_failures): {said}")


class RolloutOptions(SessionTerms, total=False):
    """The options of a rollout, by name, and the terms of its sessions."""

    n: int
    quorum: int | None
    deadline: float | None
    reward: Callable[[Any, Any], Any] | None
    after_each: Callable[[EpisodeGroup], Any] | None
    concurrency: int
    timeout: float | None
    retries: int
    retry_on: tuple[type[BaseException], ...]
    max_failures: float
    ordered: bool
    export: Mapping[str, Any] | None
    """Options of `export`."""
    on_exit: Literal[OnExit, "discard"]


class Plan(Request):
    """The arguments of a rollout, and what holds where nothing is said."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    agent: SkipValidation[Agent]
    tasks: SkipValidation[Iterable[Any]]
    n: AtLeastOne = 8
    quorum: AtLeastOne | None = None
    deadline: AboveZero | None = None
    reward: Callable[[Any, Any], Any] | None = None
    after_each: Callable[[EpisodeGroup], Any] | None = None
    concurrency: AtLeastOne = 64
    timeout: AboveZero | None = None
    retries: Whole = 1
    retry_on: tuple[type[BaseException], ...] = RETRIED
    max_failures: Annotated[float, Field(ge=0, le=1)] = 0.5
    ordered: bool = False
    export: Mapping[str, Any] = {}
    on_exit: Literal[OnExit, "discard"] = "acknowledge"
    session: Mapping[str, Any]
    """Options of `start_group`."""


def plan_of(agent: Agent, tasks: Iterable[Any], options: RolloutOptions) -> Plan:
    """The plan of a rollout. Raises BadArgument."""
    if not callable(agent):
        raise BadArgument("agent", "is neither a function of session and task, nor a Command")
    if isinstance(tasks, str | bytes | Mapping):
        raise BadArgument("tasks", "is one task; put it into a list")
    if unknown := options.keys() - RolloutOptions.__annotations__.keys():
        raise BadArgument(min(unknown), "is no option of a rollout")
    given: dict[str, Any] = {**options}
    own = {name: given.pop(name) for name in Plan.model_fields.keys() & given}
    session = {"stale_after": STALE_AFTER, **({} if given.get("train", True) else GREEDY), **given}
    plan = valid(Plan, {"agent": agent, "tasks": tasks, "session": session, **own})
    if (plan.quorum is None) is not (plan.deadline is None):
        raise BadArgument("quorum", "and deadline go together")
    return plan


@dataclass(eq=False, repr=False)
class AsyncRollout(AsyncIterator[EpisodeGroup]):
    """`async with fleet.rollout(agent, tasks) as episodes: async for group in episodes: …`

    A block that ends well acknowledges the groups that were handed out, or keeps them leased; with an exception they
    are given back. Agents that still run are ended, and their sessions closed as aborted. `on_exit="discard"` deletes
    all its sessions, however it ends.
    """

    _fleet: "AsyncFleet"
    _plan: Plan
    _newest: list[str | None]
    """Of the newest episodes, those of rollouts before it included, why they failed; None where they did not."""
    _clock: Callable[[], float] = time.monotonic
    _shown: Callable[[AsyncSession], Any] = field(default=lambda session: session)
    """Makes the sessions of episodes; set where the trainer is code that blocks."""
    _figures: list[list[Figures]] = field(default_factory=list, init=False)
    """Of the groups that were handed out."""
    _ready: dict[int, EpisodeGroup] = field(default_factory=dict, init=False)
    """Groups that were not yet, by their place; the first to end first."""
    _started: int | None = field(default=None, init=False)
    """The number of all groups, once that is known."""
    _unfinished: int = field(default=0, init=False)
    """Agents that run, or wait for a slot."""
    _groups: set[asyncio.Task[None]] = field(default_factory=set, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _open: dict[str, AsyncSession] = field(default_factory=dict, init=False)
    _entered: set[str] = field(default_factory=set, init=False)
    """All its sessions."""
    _error: BaseException | None = field(default=None, init=False)
    _signal: Broadcast = field(default_factory=Broadcast, init=False)
    _blocking: Callable[[AsyncSession], Any] = field(init=False)
    """Makes the session that a function is given which is no coroutine function."""

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self._plan.concurrency)
        self._held = Held(self._fleet._leases)
        try:
            # Refused now, not when the first group has ended.
            self._lease_seconds = self._export(["any"])._wanted.lease_seconds
        except TypeError as error:
            raise BadArgument("export", str(error)) from None
        except BadArgument as error:
            raise BadArgument(f"export.{error.argument}", error.why) from None

    def metrics(self, *, passes: Callable[[float], bool] = is_positive) -> dict[str, float]:
        """Figures of all groups that were handed out (`rollouts.metrics`). `passes` says which reward counts for
        pass@K."""
        return metrics(self._figures, passes=passes)

    async def acknowledge(self, groups: EpisodeGroup | Iterable[EpisodeGroup]) -> None:
        """They are trained, before the block has ended. Raises LeaseLost."""
        given = [groups] if isinstance(groups, EpisodeGroup) else groups
        names = [each.trajectory_id for group in given for each in group.trajectories]
        await self._held.acknowledge(name for name in names if name in self._held.lease_of)

    async def __aenter__(self) -> Self:
        from rolloutfleet.fleet.sync_fleet import blocking_sessions  # it imports this

        self._blocking = blocking_sessions(self._fleet)
        keep = self._fleet._leases.keep(self._held.lease_of, seconds=self._lease_seconds)
        self._tasks = [asyncio.create_task(each) for each in (self._start_groups(), self._keep_open(), keep)]
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        # Groups last: one may be started while the others end.
        for tasks in (self._tasks, self._groups):
            await end_tasks(tasks)
        self._tasks = []
        if discards := self._plan.on_exit == "discard":
            self._held.handed_out.clear()  # given back first: what is leased is not deleted
        trained = {session_of(name) for name in self._held.handed_out} if error is None else set[str]()
        try:
            await self._held.end(error, kept=self._held.handed_out if self._plan.on_exit == "keep" else ())
        finally:
            self._fleet._slots.given_back(self._entered - trained)
            if discards:
                raise_first(await each([self._fleet._end_one(name, None) for name in self._entered]))

    async def __anext__(self) -> EpisodeGroup:
        """The next group that has ended. Raises TooManyFailures, and what `tasks` or `after_each` raise."""
        if not self._tasks:
            raise BadArgument("rollout", "runs in its block: `with fleet.rollout(…) as episodes:`")
        with self._fleet._waiting.line("rollout") as tell:
            while True:
                if self._error is not None:
                    raise self._error
                place = len(self._figures) if self._plan.ordered else next(iter(self._ready), None)
                if place in self._ready:
                    group = self._ready.pop(place)
                    self._figures.append([Figures.of(episode) for episode in group])
                    self._held.handed_out.update(each.trajectory_id for each in group.trajectories)
                    self._signal.wake()
                    return group
                if self._started == len(self._figures):
                    self._count()
                    raise self._error or StopAsyncIteration
                tell(
                    f"rollout: {len(self._figures)} groups have come, {self._unfinished} agents run", len(self._figures)
                )
                await self._signal.wait()

    def _fail(self, error: Exception) -> None:
        self._error = self._error or error
        self._signal.wake()

    # Groups

    async def _start_groups(self) -> None:
        plan, started = self._plan, 0
        try:
            tasks = iter(plan.tasks)
            # In a thread: it may read for long, or ask the fleet.
            while (task := await call(next, tasks, _NO_MORE)) is not _NO_MORE:
                while not self._has_room():
                    await self._signal.wait()
                group = await self._fleet.start_group(
                    plan.n, task_id_of(task, started), quorum=plan.quorum, deadline=plan.deadline, **plan.session
                )
                self._unfinished += plan.n
                running = asyncio.create_task(self._run(started, task, group))
                self._groups.add(running)
                running.add_done_callback(self._groups.discard)
                started += 1
            self._started = started
        except Exception as error:
            self._fail(error)
        self._signal.wake()

    def _has_room(self) -> bool:
        """True where agents would not wait for a slot, and not many groups wait for the trainer."""
        slots, n = self._plan.concurrency, self._plan.n
        few_wait = len(self._ready) < max(1, slots // n)
        return self._error is None and few_wait and self._unfinished + n <= max(slots, n)

    async def _run(self, place: int, task: Any, started: AsyncGroup) -> None:
        group = EpisodeGroup(place=place, group_id=started.group_id, task=task)
        group.episodes = [Episode(task=task, session=self._shown(session)) for session in started]
        for session in started:
            self._enter(session)
        working = {asyncio.create_task(self._work(episode)): episode for episode in group}
        try:
            await self._until_ended(working)
            await self._compare(group)
            await self._close(group)
            await self._collect(group)
        except Exception as error:
            self._fail(error)
        finally:
            await end_tasks(working)
            with suppress(FleetError):  # told already, or nobody listens any more
                await self._close(group)
            self._signal.wake()

    async def _until_ended(self, working: Mapping["asyncio.Task[None]", Episode]) -> None:
        """All, or the quorum once the deadline is over: the others' agents are ended then."""
        quorum, deadline = self._plan.quorum or len(working), self._plan.deadline
        done, left = await asyncio.wait(working, timeout=deadline)
        while left and len(done) < quorum:
            more, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
            done |= more
        for task in left:
            reason = f"deadline: {len(done)} of {len(working)} had ended after {deadline:g} s"
            working[task].ending = CloseSession(outcome="aborted", reason=reason)
            task.cancel()
        for task in done:
            task.result()

    async def _compare(self, group: EpisodeGroup) -> None:
        """Let `after_each` see it, and reward what it says."""
        if self._plan.after_each is None:
            return
        rewards = await call(self._plan.after_each, group)
        for episode, reward in () if rewards is None else zip(group, rewards, strict=True):
            if reward is not None:
                try:
                    await self._fleet.reward(episode.session_id, float(reward))
                except FleetError as error:  # it has no turn, say
                    if episode.ending.outcome is None:
                        episode.error, episode.ending = error, ending_of(error)
        self._count(*group)

    async def _collect(self, group: EpisodeGroup) -> None:
        """Lease what the group left, and let it be handed out."""
        if self._plan.session.get("train", True):
            try:
                leased = await self._leased(group)
                for episode in group:
                    episode.trajectories = tuple(each for each in leased if each.session_id == episode.session_id)
            except Unreachable as error:  # its proxy may be back later: an export brings them then
                for episode in group:
                    episode.error, episode.ending = error, ending_of(error)
        else:
            statuses = await self._fleet.statuses(episode.session_id for episode in group)
            for episode in group:
                status = statuses[episode.session_id]
                if isinstance(status, FleetError):
                    episode.error, episode.ending = status, ending_of(status)
                else:
                    episode.status = status
        self._ready[group.place] = group

    def _export(self, session_ids: Iterable[str]) -> AsyncExport:
        """Raises BadArgument; TypeError where the options say what a rollout says itself."""
        options = {"grace": self._fleet._proxies.patience, **self._plan.export}
        return self._fleet.export(session_ids=session_ids, group_id=None, wait=True, on_exit="keep", **options)

    async def _leased(self, group: EpisodeGroup) -> list[Trajectory]:
        # By its sessions, so that what one answer can't hold comes in several.
        async with self._export(episode.session_id for episode in group) as export:
            found = [trajectory async for trajectory in export]
            for why in export.unreachable.values():
                raise Unreachable(f"what group {group.group_id} left could not be had: {why}")
            if "unknown" in export.statuses.values():
                raise Unreachable(f"what group {group.group_id} left is lost with the store of its proxy")
            # Within the block: from here on a rollout that is broken off gives them back.
            self._held.lease_of.update((each.trajectory_id, each.lease_id) for each in found)
        return found

    # Episodes

    async def _work(self, episode: Episode) -> None:
        """Run its agent, again where that may help, and reward it. With `after_each` its session stays open until the
        group has ended."""
        try:
            while not await self._attempt(episode):
                await self._replace(episode)
                episode.attempt += 1
        except FleetError as error:  # no session takes the place of that one
            episode.error, episode.ending = error, ending_of(error)
        finally:
            self._unfinished -= 1
            self._signal.wake()
        if self._plan.after_each is None:
            await self._close([episode])
            self._count(episode)

    async def _attempt(self, episode: Episode) -> bool:
        """Run its agent once, and reward it; False where it is to run again."""
        async with self._slots:
            began = self._clock()
            try:
                async with asyncio.timeout(self._plan.timeout) as limit:
                    episode.result = await self._call(self._plan.agent, episode)
                episode.ending = CloseSession()
            except Exception as error:
                if isinstance(error, TimeoutError) and limit.expired():
                    episode.ending = CloseSession(outcome="truncated", reason=f"timeout: {self._plan.timeout:g} s")
                elif episode.attempt < self._plan.retries and self._is_retried(error):
                    log.info("session %s: its agent is run again: %r", episode.session_id, error)
                    return False
                else:
                    episode.error, episode.ending = error, ending_of(error)
            finally:
                episode.seconds = self._clock() - began
            if episode.error is None or episode.outcome == "truncated":
                await self._reward(episode)
        return True

    def _is_retried(self, error: BaseException) -> bool:
        return any(isinstance(each, self._plan.retry_on) for each in linked(error))

    async def _reward(self, episode: Episode) -> None:
        try:
            value = episode.result if isinstance(episode.result, SupportsFloat) else None
            if value is None and self._plan.reward is not None:
                value = await self._call(self._plan.reward, episode)
            elif self._plan.after_each is None and isinstance(episode.result, str) and _FLOAT.fullmatch(episode.result):
                raise TypeError(f"the agent returned the text {episode.result!r}: a reward is a number")
            if value is not None:
                await self._fleet.reward(episode.session_id, float(value))
        except Exception as error:
            episode.error, episode.ending = error, ending_of(error)

    async def _call(self, function: Callable[[Any, Any], Any], episode: Episode) -> Any:
        session = self._open[episode.session_id]
        return await call(function, session if is_async(function) else self._blocking(session), episode.task)

    def _count(self, *ended: Episode) -> None:
        """Count them among the newest, and give up where too many of those have failed."""
        newest = self._newest if self._error is None else []  # of a rollout that has given up, none count
        for episode in ended:
            if failed := episode.outcome == "failed":
                log.warning("session %s failed: %s", episode.session_id, episode.reason)
            newest.append((episode.reason or "unknown") if failed else None)
        del newest[:-WATCHED]
        reasons = Counter(reason for reason in newest if reason is not None)
        enough = len(newest) >= FEWEST or (self._started == len(self._figures) and None not in newest)
        if enough and reasons.total() > self._plan.max_failures * len(newest):
            self._fail(TooManyFailures(reasons, of=len(newest)))
            newest.clear()  # whoever has mended the agent begins anew

    # Sessions

    def _enter(self, session: AsyncSession) -> None:
        self._open[session.session_id] = session
        self._entered.add(session.session_id)
        self._fleet._in_blocks[session.session_id] = None

    async def _replace(self, episode: Episode) -> None:
        """Give its agent a new session in the place of the one that it has."""
        old = episode.session_id
        session = await self._fleet.start_session(replaces=old, **self._plan.session)
        self._open.pop(old)
        self._fleet._in_blocks.pop(old, None)
        self._enter(session)
        episode.session = self._shown(session)

    async def _close(self, episodes: Iterable[Episode]) -> None:
        """Close those that are open. What an agent itself said of its end counts."""
        left = [episode for episode in episodes if episode.session_id in self._open]
        for episode in left:
            episode.ending = self._fleet._in_blocks.pop(episode.session_id, None) or episode.ending
        raise_first(await each([self._fleet._end_one(one.session_id, one.ending) for one in left]))
        for episode in left:  # not before: who is broken off here is closed again
            self._open.pop(episode.session_id, None)

    async def _keep_open(self) -> None:
        """Touch the sessions, so that they go stale with this process alone."""
        stale_after = self._plan.session["stale_after"]

        async def touch(name: str) -> None:
            await self._fleet._of_session("POST", name, "/touch", Answered, patience=0.0, timeout=TOUCH_TIMEOUT)

        await repeat_by_owner(lambda: self._open, touch, every=(stale_after or STALE_AFTER) / TOUCHES)


def task_id_of(task: Any, index: int) -> str:
    """The `task_id` or `id` of a task that is a dict, else its place among the tasks."""
    named = [task[name] for name in ("task_id", "id") if name in task] if isinstance(task, Mapping) else []
    return str(named[0]) if named else str(index)
