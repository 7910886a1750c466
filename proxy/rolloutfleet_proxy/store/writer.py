"""The one thread that writes: it gathers what is waiting, commits it together, and only then lets answers go.

With what it commits it saves the clock of the seconds served, and what became of answers.
"""

import asyncio
import contextlib
import errno
import queue
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DamageFound, DiskFailed, DiskFull, StoreBusy
from rolloutfleet_proxy.store.database import Database, is_damage, is_locked, no_room
from rolloutfleet_proxy.store.deliveries import Deliveries
from rolloutfleet_proxy.store.transaction import Transaction, count_commit, write_counts

T = TypeVar("T")

SAVE_EVERY = 1.0
"""Seconds: a crash loses at most this much of the count, which can only make sessions look younger."""

GROUP = 256
"""Operations in one transaction at the most."""

SPACING = 0.005
"""Seconds between two commits, while there is company to wait for: a commit costs as much as writing several turns."""

COMPANY = 16
"""Operations for which a commit no longer waits."""

PATIENCE = 15.0
"""Seconds for which an operation waits while another program has the store locked."""


class StoreClosed(Exception):
    """The store has been closed; nothing more is written."""


def patience(*, last_group: int, since: float, waiting: int) -> float:
    """Seconds to wait for more operations before a commit; `since` is seconds since the last one ended.

    Whoever writes alone, one operation after the other, never waits: nobody came while the last commit was made.
    """
    return max(0.0, SPACING - since) if last_group > 1 and waiting < COMPANY else 0.0


@dataclass(eq=False, slots=True)
class _Job:
    operation: Callable[[Transaction], Any]
    future: asyncio.Future[Any]
    frees: bool
    taken: bool = False
    """It is being written: it can no longer be given up."""
    given_up: bool = False
    result: Any = None
    error: BaseException | None = None


class ServedClock:
    """Seconds that a store has been served over all its boots: no clock jump and no time with the proxy down counts.

    Monotonic, and durable to `SAVE_EVERY`. From one `tick` to the next it goes no further than `longest_step`: of the
    time for which a process stood still (SIGSTOP, a paused machine), nobody could have used a session.
    """

    def __init__(
        self,
        database: Database,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        longest_step: float = float("inf"),
    ) -> None:
        with contextlib.closing(database.connect(read_only=True)) as connection:
            row = connection.execute("SELECT value FROM facts WHERE name = 'served'").fetchone()
        self._monotonic = monotonic
        self._longest_step = longest_step
        self._ticked: tuple[float, float] = row[0] if row else 0.0, monotonic()
        """Served and monotonic seconds at the last tick; together, as other threads read them."""
        self._saved = float("-inf")

    def now(self) -> float:
        served, ticked = self._ticked
        return served + min(self._longest_step, self._monotonic() - ticked)

    async def tick(self) -> None:
        """Go on. To be called more often than the longest step is."""
        self._ticked = self.now(), self._monotonic()

    def save(self, connection: sqlite3.Connection, served: float) -> None:
        """Write the count with a transaction that is under way, if the last one is old enough."""
        if served - self._saved >= SAVE_EVERY:
            connection.execute(
                "INSERT INTO facts (name, value) VALUES ('served', ?) ON CONFLICT DO UPDATE SET value = excluded.value",
                (served,),
            )
            self._saved = served


class Writer:
    """Group commit: `await writer.run(operation)` returns once the operation's rows are on disk.

    An operation is a function of a Transaction. It may raise: then what it wrote is undone, the others of its
    group stand, and the caller gets the exception. Operations run in the order of their `run` calls.

    What frees rows, or leads to that, says so: on a disk that is full it is written in the database's reserve.
    """

    def __init__(
        self,
        database: Database,
        clock: ServedClock,
        *,
        wall: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._sleep = sleep
        self._connection = database.connect()
        self._reserve = database.reserve
        self._clock = clock
        self._wall = wall
        self.deliveries = Deliveries()
        """Written with the next group."""
        self.keep_fraction = 0.0
        """As `Transaction` has it."""
        self._taking = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self.locked_since: float | None = None
        """Monotonic; while another program has the store locked."""
        self._last_group = 0
        self._last_end = 0.0
        self._thread = threading.Thread(target=self._serve, name="store-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Operations that the thread has not taken yet."""
        return self._jobs.qsize()

    def submit(
        self, operation: Callable[[Transaction], T], *, frees: bool = False, waits: bool = False
    ) -> "asyncio.Future[T]":
        """Queue an operation; the future ends when it is on disk. Cancelling the future does not undo it.

        While another program has the store locked, one that `waits` does; any other is given up after `PATIENCE`, and
        its future gets StoreBusy.
        """
        if self._closed:
            raise StoreClosed("the store is closed")
        future: asyncio.Future[T] = self._loop.create_future()
        job = _Job(operation, future, frees)
        self._jobs.put(job)
        if not waits:
            timer = self._loop.call_later(PATIENCE, self._give_up, job)
            future.add_done_callback(lambda _: timer.cancel())
        return future

    async def run(self, operation: Callable[[Transaction], T], *, frees: bool = False, waits: bool = False) -> T:
        return await self.submit(operation, frees=frees, waits=waits)

    async def free(self, operation: Callable[[Transaction], T], *, waits: bool = False) -> tuple[T, list[str]]:
        """Run what may free sessions; returns also those whose rows are gone by now, which memory is to forget."""
        return await self.run(lambda transaction: (operation(transaction), transaction.freed), frees=True, waits=waits)

    async def close(self) -> None:
        """Commit what is queued, save the served clock, and end the thread; not while another program has the store
        locked, which may be for ever."""
        if not self._closed:
            with contextlib.suppress(StoreBusy):
                await self.run(lambda transaction: None)
            self._closed = True
            self._jobs.put(None)
        if self.locked_since is None:
            await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        with_more = True
        while with_more:
            jobs, with_more = self._gather()
            if jobs:
                self._commit(jobs)
                self._last_group, self._last_end = len(jobs), time.monotonic()
                self._loop.call_soon_threadsafe(_deliver, jobs)
            del jobs  # Else the last group's turns stay in memory until somebody writes again.
        self._connection.close()

    def _gather(self) -> tuple[list[_Job], bool]:
        jobs: list[_Job] = []
        job = self._jobs.get()
        if job is not None:
            since = time.monotonic() - self._last_end
            self._sleep(patience(last_group=self._last_group, since=since, waiting=self._jobs.qsize()))
        while job is not None:
            jobs.append(job)
            if len(jobs) == GROUP:
                return jobs, True
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return jobs, True
        return jobs, False

    def _give_up(self, job: _Job) -> None:
        with self._taking:
            job.given_up = not job.taken
        if job.given_up and not job.future.done():
            job.future.set_exception(StoreBusy())

    def _begin(self, jobs: list[_Job]) -> None:
        """Begin a transaction, however long another program has the store locked, and leave out of `jobs` what was
        given up meanwhile."""
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if not is_locked(error):
                    raise
                self.locked_since = self.locked_since or time.monotonic()
            else:
                break
        self.locked_since = None
        with self._taking:
            jobs[:] = [job for job in jobs if not job.given_up]
            for job in jobs:
                job.taken = True

    def _commit(self, jobs: list[_Job]) -> None:
        """Commit the group; where the disk refuses it, each operation alone, so that small ones may still fit."""
        error = self._attempt(jobs, with_deliveries=True)
        if error is not None:
            for job in jobs:
                # Alone it would be refused once more, unless it was not.
                alone = len(jobs) == 1 and not self.deliveries
                failed = error if alone else self._attempt([job])
                if isinstance(failed, DiskFull) and job.frees:
                    failed = self._attempt_in_reserve(job, failed)
                job.error = failed or job.error
        elif self._reserve is not None and self._reserve.owed:
            self._reserve.take()

    def _attempt_in_reserve(self, job: _Job, error: DiskFull) -> Exception | None:
        """One operation in the space that is held for it, which is taken again before anybody else writes."""
        if self._reserve is None or not self._reserve.give_up():
            return error
        try:
            return self._attempt([job], in_reserve=True)
        finally:
            self._reuse_log()
            self._reserve.take()

    def _reuse_log(self) -> None:
        """Bring the log into the file, so that what comes next is written over it and needs no room of its own.

        Readers of an older state are waited for as long as a connection waits (`BUSY_MS`): behind one that is not, the
        log grows by each write, and what it grew by is missing of the reserve.
        """
        with contextlib.suppress(sqlite3.Error):
            self._connection.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()

    def _attempt(
        self, jobs: list[_Job], *, with_deliveries: bool = False, in_reserve: bool = False, guarded: bool = False
    ) -> Exception | None:
        """One transaction over `jobs`. Returns what stopped all of it, or None.

        `guarded`: each operation has a savepoint, so that what one wrote before it raised is undone alone. Hardly any
        raises after a write, and a savepoint takes two more statements.
        """
        connection = self._connection
        counts: Counter[tuple[str, str, str]] = Counter()
        before = connection.total_changes
        changed = True
        try:
            self._begin(jobs)
            # Now, not before: another program may have held the store for long.
            served, wall, keep = self._clock.now(), self._wall(), self.keep_fraction
            delivered = self.deliveries.write(connection) if with_deliveries else 0
            for job in jobs:
                transaction = Transaction(
                    connection, served=served, wall=wall, keep_fraction=keep, in_reserve=in_reserve
                )
                if not self._run_one(job, transaction, counts, guarded=guarded):
                    connection.execute("ROLLBACK")
                    return self._attempt(jobs, with_deliveries=with_deliveries, in_reserve=in_reserve, guarded=True)
            failpoints.reach(failpoints.IN_TRANSACTION)
            write_counts(connection, counts)
            changed = connection.total_changes > before
            if changed:
                count_commit(connection)
            self._clock.save(connection, served)
            failpoints.reach(failpoints.BEFORE_COMMIT)
            connection.execute("COMMIT")
            self.deliveries.written(delivered)
            failpoints.reach(failpoints.AFTER_COMMIT)
        except sqlite3.Error as error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            explained = _explain(error)
            # Where only the clock was to be saved, what was read stands: a proxy must start on a full disk.
            return explained if changed or not isinstance(explained, DiskFull) else None
        return None

    def _run_one(
        self, job: _Job, transaction: Transaction, counts: Counter[tuple[str, str, str]], *, guarded: bool
    ) -> bool:
        """False where it raised, and what it wrote can only be undone with all else."""
        connection = self._connection
        if guarded:
            connection.execute("SAVEPOINT job")
        before = connection.total_changes
        job.error = None
        try:
            job.result = job.operation(transaction)
        except sqlite3.Error as error:
            if _disk_refused(error):
                raise
            job.error = _explain(error)
        except Exception as error:
            job.error = error
        if job.error is None:
            counts.update(transaction.counts)
        elif guarded:
            connection.execute("ROLLBACK TO job")
        if guarded:
            connection.execute("RELEASE job")
        return guarded or job.error is None or connection.total_changes == before


def _deliver(jobs: list[_Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is not None:
            job.future.set_exception(job.error)
        else:
            job.future.set_result(job.result)


def _disk_refused(error: sqlite3.Error) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    return code in (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
    )


def _explain(error: sqlite3.Error) -> Exception:
    if no_room(error):
        return DiskFull(f"no room on the store's disk ({errno.errorcode[errno.ENOSPC]})")
    if is_damage(error):
        return DamageFound(f"Nothing was recorded: the store's file is damaged ({error}).")
    return DiskFailed(f"the store's disk refused a write: {error}") if _disk_refused(error) else error
