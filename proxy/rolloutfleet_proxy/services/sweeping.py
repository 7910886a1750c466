"""The sweep: choose, seal, note, dump, free, a few groups at a time; what fails is kept and tried again next time.

A group is sealed on the event loop, where its calls are counted, so none can begin behind the sweep's back. What had
begun before changes the rows, and then the transaction that would free the group finds it changed, and spares it.

A file is a draft until its session is freed: the store notes it before it is written, and that transaction takes it off
the list. What is left on it holds nothing that the store has not, and must not outlive what it was made of: a later
sweep removes it where it has not written it anew, and so does the next start.
"""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, Final, TypeVar

from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.stale import Due, Group, Patience, due, late_groups, shortest_wait
from rolloutfleet_proxy.lifecycle import retention
from rolloutfleet_proxy.lifecycle.dumping import Written, drafts_of, dump
from rolloutfleet_proxy.lifecycle.folder import DumpFolder, FolderFull
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.shards.files import Gathered
from rolloutfleet_proxy.store import tombstones
from rolloutfleet_proxy.store.dumps import (
    Draft,
    abandon_drafts,
    forget_drafts,
    keep_files,
    load_drafts,
    load_files,
    metadata_with_shards,
    note_drafts,
)
from rolloutfleet_proxy.store.groups import Freed, Spared, free, load_candidates, load_group
from rolloutfleet_proxy.store.store import Connection, Store
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.metrics import Metrics

T = TypeVar("T")

BATCH: Final = 64
"""Groups that are sealed, dumped and freed together: one sync of the folder and two commits serve them all."""
BATCH_SECONDS: Final = 0.5
"""No further group is dumped with a batch that took so long, since calls may be waiting for it."""
RECLAIMED_BYTES: Final = 16 << 10
"""Bytes that memory gives back, roughly, for each session and each turn that is reclaimed."""
HOPELESS: Final = 8
"""So many groups in a row that could not be dumped end the sweep. The next one begins with others."""


@dataclass(frozen=True, slots=True)
class Orders:
    """What the settings say now."""

    patience: Patience
    folder: DumpFolder | None
    """None: turns are discarded."""
    keep_age: float | None = None
    """Seconds that a dump is kept; None: for ever."""
    keep_bytes: int | None = None
    """Of all dumps together; None: any number."""

    @property
    def keeps_within_bounds(self) -> bool:
        return self.keep_age is not None or self.keep_bytes is not None


@dataclass(slots=True)
class _Dumped:
    """A group whose turns are in files, if it has any and there is a folder."""

    chosen: Due
    written: Written
    unreachable: list[str] = field(default_factory=list)
    """Shards that may be had another time."""


def look(connection: Connection, *, after: int, now: float, patience: Patience) -> tuple[list[Group], int | None]:
    """(groups with a late member, where the next page starts) of a page of sessions from behind row `after`."""
    candidates, last = load_candidates(connection, after=after, now=now, shortest_wait=shortest_wait(patience))
    return [load_group(connection, name) for name in late_groups(candidates, now=now, patience=patience)], last


@dataclass(eq=False, slots=True, kw_only=True)
class Sweeper:
    """Reclaims sessions when told to, and counts what came of it."""

    store: Store
    registry: SessionRegistry
    follow: Callable[[Freed], None]
    """Follows in memory what became of the rows, before anybody who waited for them goes on."""
    seals: Seals
    metrics: Metrics
    gather: Callable[[int, Any], AbstractAsyncContextManager[Gathered]]
    """Brings the shards of a session, by its row id and metadata."""
    wall: Callable[[], float] = time.time
    failing: dict[str, str] = field(init=False, default_factory=dict)
    """Why each group that the last sweep could not reclaim is still there, by group_id."""
    released: int = field(init=False, default=0)
    """Bytes, roughly, that memory no longer needs for what was reclaimed."""
    _thread: ThreadPoolExecutor = field(
        init=False, default_factory=partial(ThreadPoolExecutor, max_workers=1, thread_name_prefix="dumper")
    )
    _one_at_a_time: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def close(self) -> None:
        """Return when no file is being written any more."""
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)

    async def sweep(self, orders: Orders) -> None:
        """Reclaim what is due. Never raises for what is wrong with a group or the folder: that is in `failing`."""
        async with self._one_at_a_time:
            began = self.store.clock.now()
            await self._sweep(orders, began)
            await self._forget(orders, this_sweep=began)

    async def retire(self, orders: Orders) -> int:
        """Dump and free all sessions without a call in flight that are not leased; returns how many that were.

        What fails is in `failing`, and still there.
        """
        at_once = replace(orders, patience=replace(orders.patience, at_once=True))
        async with self._one_at_a_time:
            began = self.store.clock.now()
            # Once for members that are open, and once for those of the same groups that had ended.
            sweeps = [await self._sweep(at_once, began) for _ in range(2)]
            if not any(sweep.is_hopeless for sweep in sweeps):
                # Else a draft may be all that is left of a group that was not tried.
                await self._forget(orders, this_sweep=began)
        return sum(sweep.reclaimed for sweep in sweeps)

    async def _sweep(self, orders: Orders, began: float) -> "_Sweep":
        sweep = _Sweep(orders, began=began, put_off=frozenset(self.failing))
        after: int | None = 0
        while after is not None:
            groups, after = await self.store.read(
                partial(look, after=after, now=self.store.clock.now(), patience=orders.patience)
            )
            sweep.put_off_those_that_failed(groups)
            await self._reclaim(sweep)
        sweep.take_up_those_that_failed()
        await self._reclaim(sweep)
        for group in sweep.failing.keys() - self.failing.keys():
            logger.warning("group %s could not be reclaimed, and is kept: %s", group, sweep.failing[group])
        self.failing = {**self.failing, **sweep.failing} if sweep.is_hopeless else sweep.failing
        self.metrics.groups_not_reclaimed.set(len(self.failing))
        return sweep

    async def _forget(self, orders: Orders, *, this_sweep: float) -> None:
        """Remove the drafts of earlier sweeps, old dumps and old tombstones.

        A draft was abandoned by a later commit than the one that failed to free its session. So that one is not on the
        disk, even where that is else only known when the store is opened again.
        """
        removed: list[Draft] = []
        if orders.folder is not None:
            try:
                abandoned = [draft for draft in await self.store.read(load_drafts) if draft.abandoned]
                await self.in_thread(partial(orders.folder.remove_drafts, abandoned))
                removed = abandoned
                if orders.keeps_within_bounds:
                    await self._remove_dumps(orders, orders.folder, this_sweep=this_sweep)
            except OSError as error:
                logger.warning("old dumps could not be removed: %s", error)

        def forget(transaction: Transaction) -> None:
            forget_drafts(transaction, removed)
            abandon_drafts(transaction)
            tombstones.prune(transaction)

        await self.store.write(forget, frees=True)

    async def tidy(self, orders: Orders) -> None:
        """Remove from the folder what earlier processes of this proxy left behind."""
        if orders.folder is not None:
            try:
                unfinished = await self.in_thread(orders.folder.remove_unfinished)
                if unfinished:
                    logger.info("removed %d dump files that a crash left half written", unfinished)
                drafts = await self.store.read(load_drafts)
                await self.in_thread(partial(orders.folder.remove_drafts, drafts))
            except OSError as error:
                logger.warning("the folder of dumps could not be tidied: %s", error)

    async def _remove_dumps(self, orders: Orders, folder: DumpFolder, *, this_sweep: float) -> None:
        """Remove the dumps that are too old, or too much."""
        now, known = self.store.clock.now(), await self.store.read(load_files)
        listed = partial(folder.listed, after="", limit=sys.maxsize)
        files = retention.kept(await self.in_thread(listed), known, ordinal=self.store.owner.ordinal, now=now)
        going = retention.removable(
            files, now=now, age=orders.keep_age, most_bytes=orders.keep_bytes, this_sweep=this_sweep
        )
        await self.in_thread(partial(folder.remove, going))
        left = [file for file in files if file.file not in set(going)]
        if {file.file for file in left} != known.keys():
            await self.store.write(partial(keep_files, files={file.file: file.since for file in left}), frees=True)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """Do what takes files; one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    async def _reclaim(self, sweep: "_Sweep") -> None:
        while sweep.todo and not sweep.is_hopeless:
            await self._reclaim_batch(sweep, sweep.batch())
            failpoints.reach(failpoints.MID_SWEEP)

    async def _reclaim_batch(self, sweep: "_Sweep", groups: Sequence[Group]) -> None:
        chosen = [one for group in groups if (one := self._due(group, sweep)) is not None]
        if not chosen:
            return
        names = frozenset(chain.from_iterable(one.names for one in chosen))
        with self.seals.sealed(names):
            fresh = await self.store.read(lambda connection: [load_group(connection, g.group.name) for g in chosen])
            still = [one for group in fresh if (one := self._due(group, sweep)) and names.issuperset(one.names)]
            await self._free(sweep, await self._dump(sweep, still))

    def _due(self, group: Group, sweep: "_Sweep") -> Due | None:
        return due(group, now=self.store.clock.now(), patience=sweep.orders.patience, busy=self.registry.is_busy)

    async def _dump(self, sweep: "_Sweep", chosen: Sequence[Due]) -> list[_Dumped]:
        folder = sweep.orders.folder
        if folder is None:
            return [_Dumped(one, Written()) for one in chosen]
        dumped: list[_Dumped] = []
        ids = [session.id for one in chosen for session in one.to_dump]
        with_shards = await self.store.read(partial(metadata_with_shards, sessions=ids))
        wall = self.wall()
        chosen = await self._noted(sweep, chosen, wall)
        ends = time.monotonic() + BATCH_SECONDS
        for place, one in enumerate(chosen):
            if place and time.monotonic() > ends:
                sweep.todo.extendleft(later.group for later in reversed(chosen[place:]))
                break
            if sweep.no_room is not None and one.may_have_files:
                self._wait_for_room(sweep, one, sweep.no_room)
                continue
            its = {session.id: with_shards[session.id] for session in one.sessions if session.id in with_shards}
            if its and len(chosen) > 1:
                sweep.alone(one.group)
                continue
            try:
                dumped.append(await self._dump_one(folder, one, its, wall))
            except FolderFull as error:
                self._wait_for_room(sweep, one, error)
            except Exception as error:
                self._fail(sweep, one, error)
                if sweep.is_hopeless:
                    break
        return await self._synced(sweep, folder, dumped)

    async def _noted(self, sweep: "_Sweep", chosen: Sequence[Due], wall: float) -> Sequence[Due]:
        """Those of them whose files the store knows as drafts; a crash then leaves none that it doesn't know."""
        drafts = list(chain.from_iterable(drafts_of(one, wall) for one in chosen))
        if not drafts or sweep.no_room is not None:
            return chosen
        try:
            await self.store.write(partial(note_drafts, drafts=drafts), frees=True)
        except Exception as error:
            for one in chosen:
                if one.may_have_files:
                    self._fail(sweep, one, error)
            return [one for one in chosen if not one.may_have_files]
        return chosen

    async def _dump_one(self, folder: DumpFolder, chosen: Due, with_shards: Mapping[int, Any], wall: float) -> _Dumped:
        async with contextlib.AsyncExitStack() as gathering:
            shards = {
                session: await gathering.enter_async_context(self.gather(session, metadata))
                for session, metadata in with_shards.items()
            }
            work = partial(dump, folder, self.store.reader.run_blocking, chosen, owner=self.store.owner, shards=shards)
            written = await self.in_thread(partial(work, wall=wall))
            for session in chosen.sessions:
                if damaged := written.damaged.get(session.id):
                    self.metrics.damage_found.inc(len(damaged))
                    logger.error("session %s: turns %s are damaged on the disk, and in no dump", session.name, damaged)
            return _Dumped(chosen, written, [name for found in shards.values() for name in found.unreachable])

    async def _synced(self, sweep: "_Sweep", folder: DumpFolder, dumped: list[_Dumped]) -> list[_Dumped]:
        """Those of them whose files are durable."""
        if not any(one.written.files for one in dumped):
            return dumped
        try:
            await self.in_thread(folder.sync)
        except OSError as error:
            for one in dumped:
                self._fail(sweep, one.chosen, error)
                await self._remove(folder, one.written.files)
            return []
        failpoints.reach(failpoints.AFTER_DUMP)
        for one in dumped:
            if one.unreachable:
                # The files stay, marked as incomplete, until they can be written anew.
                missing = ", ".join(one.unreachable[:10])
                lacks = f"ShardsMissing: shards whose owner does not answer: {missing}"
                # To wait for each of many may take long; but where the store goes, every group has to have its files.
                self._fail(sweep, one.chosen, lacks, in_a_row=not sweep.orders.patience.at_once)
        return [one for one in dumped if not one.unreachable]

    async def _free(self, sweep: "_Sweep", dumped: Sequence[_Dumped]) -> None:
        folder = sweep.orders.folder
        since = sweep.began if sweep.orders.keeps_within_bounds else None
        work = [
            partial(
                free,
                chosen=one.chosen,
                files=None if folder is None else one.written.files,
                damaged=one.written.damaged,
                since=since,
                drafts=one.written.drafts,
            )
            for one in dumped
        ]
        results = await asyncio.gather(*(self.store.write(each, frees=True) for each in work), return_exceptions=True)
        for one, result in zip(dumped, results, strict=True):
            if isinstance(result, Freed):
                sweep.failed_in_a_row = min(0, sweep.failed_in_a_row)
                self.metrics.sessions_reclaimed.labels(one.chosen.reason).inc(len(one.chosen.sessions))
                sweep.reclaimed += len(one.chosen.sessions)
                self.released += RECLAIMED_BYTES * (len(result.names) + result.turns)
                self.follow(result)
            elif isinstance(result, Spared):
                await self._remove(folder, one.written.files)
            elif isinstance(result, Exception):
                # The files stay until a later sweep: such a commit may be durable, or the store go with its pod.
                self._fail(sweep, one.chosen, result)
            else:
                raise result

    async def _remove(self, folder: DumpFolder | None, files: Sequence[str]) -> None:
        if folder is not None and files:
            with contextlib.suppress(OSError):
                await self.in_thread(partial(folder.remove, files))

    def _wait_for_room(self, sweep: "_Sweep", chosen: Due, error: FolderFull) -> None:
        """Keep it until a later sweep finds room. What needs no file goes on: it may be what makes room."""
        sweep.no_room = error
        sweep.failing[chosen.group.name] = f"waits for room: {error}"

    def _fail(self, sweep: "_Sweep", chosen: Due, error: Exception | str, *, in_a_row: bool = True) -> None:
        self.metrics.dump_failures.inc()
        sweep.failed_in_a_row += in_a_row
        sweep.failing[chosen.group.name] = error if isinstance(error, str) else f"{type(error).__name__}: {error}"


@dataclass(eq=False, slots=True)
class _Sweep:
    """One sweep under way."""

    orders: Orders
    began: float
    put_off: frozenset[str]
    todo: deque[Group] = field(init=False, default_factory=deque)
    failing: dict[str, str] = field(init=False, default_factory=dict)
    reclaimed: int = field(init=False, default=0)
    """Sessions."""
    failed_in_a_row: int = field(init=False, default=0)
    no_room: FolderFull | None = field(init=False, default=None)
    """Why no more files are written in this sweep."""
    _later: list[Group] = field(init=False, default_factory=list)
    _alone: set[str] = field(init=False, default_factory=set)

    @property
    def is_hopeless(self) -> bool:
        return self.failed_in_a_row >= HOPELESS

    def batch(self) -> list[Group]:
        """What to reclaim next."""
        first = self.todo.popleft()
        batch = [first]
        while self.todo and not self._alone.intersection((first.name, self.todo[0].name)) and len(batch) < BATCH:
            batch.append(self.todo.popleft())
        return batch

    def alone(self, group: Group) -> None:
        """Put a group off to a batch of its own: what it takes may be long in coming, and others must not wait."""
        self._alone.add(group.name)
        self.todo.append(group)

    def put_off_those_that_failed(self, groups: Sequence[Group]) -> None:
        """Take groups up, but for those that failed before: they come last, so that they hold up nobody."""
        for group in groups:
            (self._later if group.name in self.put_off else self.todo).append(group)

    def take_up_those_that_failed(self) -> None:
        """Each of them has its try, however many fail again; but where the sweep is hopeless, none has."""
        if not self.is_hopeless:
            self.todo.extend(self._later)
            self.failed_in_a_row = -len(self._later)
        self._later = []
