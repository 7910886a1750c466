"""Tensors kept for others: put, read, and let go. The one place where their files and their rows meet.

A row is written once its file is durable, and a file is removed once its row is gone from the disk. So a crash leaves
files too many at the worst, never a row without its file; `orphans` finds them.
"""

import asyncio
import contextlib
import threading
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from rolloutfleet.tensors import Form, RemoteTensor, write_header
from rolloutfleet.wire import DEFAULT_SHARD_TTL
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DiskError, InvalidRequest, NoRoom
from rolloutfleet_proxy.exports import shards as exported
from rolloutfleet_proxy.exports.forms import load_plan
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.shards.files import PIECE, Body, Incoming, Made, Readable, ShardFiles
from rolloutfleet_proxy.shards.header import NotTensors
from rolloutfleet_proxy.shards.orphans import Orphans
from rolloutfleet_proxy.store import shards as rows
from rolloutfleet_proxy.store.leases import SHARDS_AFTER_LEASE, Grant
from rolloutfleet_proxy.store.shards import Shard
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.telemetry import logger

T = TypeVar("T")
THREADS: Final = 4
SYNCED_TOGETHER: Final = 64
"""Files of an export that are open at once, and made durable together."""
_REMOVED_AT_ONCE: Final = 1000


class Shards:
    """The shards of a proxy. `nbytes` is what their tensors take of the disk."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.nbytes = 0
        self._files = ShardFiles(folder)
        self._store = store
        self._threads = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="shards")
        self._syncing = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="shards' disk")
        self._arriving: set[str] = set()
        self._in_use = _InUse()
        self._removing = asyncio.Lock()
        self.orphans = Orphans(self._files, store, arriving=self._arriving)

    @classmethod
    async def open(cls, folder: Path, store: Store) -> "Shards":
        shards = cls(folder, store)
        await shards._count()
        return shards

    def close(self) -> None:
        self._threads.shutdown(wait=True)
        self._syncing.shutdown(wait=True)

    # Putting

    async def put(
        self, name: str, body: AsyncIterable[bytes], *, session: str | None = None, ttl: float | None = None
    ) -> tuple[Form, bool]:
        """Keep the one tensor of a safetensors body, under a name, for a session or for `ttl` seconds, or both.

        Returns its form, and whether it was not here before.

        It is on disk when this returns; where it raises, nothing of it is left. Raises NotTensors,
        DiskError, and as `rows.put`.
        """
        with self._arrivals() as pending:
            incoming = await self._received(name, body, pending)
            await self._run(self._finish, incoming)
            form, digest = incoming.complete()
            fresh = await self._commit(
                pending,
                lambda transaction: rows.put(transaction, name, incoming.file, form, digest, session=session, ttl=ttl),
            )
        return form, fresh

    async def put_export(self, granted: Grant) -> None:
        """Every tensor of the export is a shard when this returns, and lives for its lease and an hour more.

        Where it raises, the shards that it put are gone. Raises ExportGone, DiskError.
        """
        if granted.lease is None or granted.expires_in is None:
            return
        lease, ttl = granted.lease, granted.expires_in + SHARDS_AFTER_LEASE
        owner, read = self._store.owner, self._store.reader.run_blocking
        before = await self._store.read(rows.newest)
        try:
            for member in granted.members:
                # Turns are counted within their trajectory: a rank that fetches one row need not know of the rest.
                load = partial(load_plan, member=member, asked=granted.asked, first_index=0)
                plan = await self._store.read(load)
                names = exported.names(owner, plan)
                there = await self._store.write(partial(rows.keep_longer, names=names, lease=lease, ttl=ttl))
                if len(there) < len(names):
                    tensors = exported.missing(owner, read, plan, frozenset(there))
                    await self._put_all(tensors, partial(rows.put_for_lease, lease=lease, ttl=ttl))
        except Exception:
            await self.take_back(lease=lease, newer_than=before)
            raise

    async def restore(self, tensors: Iterable[Made], *, session: int) -> None:
        """Keep tensors again for a session, given by its row id, all of them or none; made in a worker thread.

        The same tensor that is kept under a name already stays as it is. Raises ShardConflict where a name holds
        another one, DiskError.
        """
        await self._put_all(tensors, rows.restore, session=session)

    async def _put_all(self, tensors: Iterable[Made], keep: Callable[..., None], *, session: int | None = None) -> None:
        """Keep all of them or none. They are made in a worker thread, one after the other. Raises DiskError."""
        with self._arrivals() as pending:
            await self._run(self._write, tensors, pending)
            shards = [Shard(each.name, each.file, *each.complete(), session=session) for each in pending]
            await self._commit(pending, partial(keep, shards=shards))

    # Reading

    async def find(self, names: Sequence[str]) -> dict[str, Shard]:
        """Those of these names that are kept."""
        return await self._store.read(lambda connection: rows.find(connection, names))

    def pieces(self, shard: Shard) -> Iterator[bytes]:
        """A tensor's bytes, without a header; for a worker thread. Raises OSError where its file is gone."""
        with self._in_use.holding([shard.file]):
            yield from self._files.pieces(shard.file, shard.form)

    def body(self, shards: Iterable[Shard], *, metadata: dict[str, str] | None = None) -> Body:
        """Shards as one safetensors file, each under its name. Their files stay while it is being read."""
        by_name = {shard.name: shard for shard in shards}
        # Wide elements first: so every tensor begins at a multiple of its element's size.
        order = sorted(((name, shard.form) for name, shard in by_name.items()), key=lambda named: -named[1].itemsize)
        header = write_header(order, metadata=metadata)
        size = len(header) + sum(form.nbytes for _, form in order)
        return Body(size, self._body(header, [by_name[name] for name, _ in order]))

    @contextlib.asynccontextmanager
    async def borrowed(self, name: str, body: AsyncIterable[bytes]) -> AsyncIterator[Readable]:
        """The one tensor of a safetensors body, in a file that goes when the block ends.

        Raises NotTensors, DiskError.
        """
        with self._arrivals() as pending:
            incoming = await self._received(name, body, pending)
            await self._run(incoming.finish)
            form, _ = incoming.complete()
            yield Readable(form, partial(self._files.pieces, incoming.file, form))

    # Letting go

    async def delete(self, names: Sequence[str]) -> tuple[int, int]:
        """(how many of these there were, their bytes)."""
        done = await self._store.write(lambda transaction: rows.delete(transaction, names), frees=True)
        await self.collect()
        return done

    async def take_back(self, *, lease: str, newer_than: int) -> None:
        """Let go of what an export put behind row `newer_than` before it failed. Never raises for a full disk."""
        with contextlib.suppress(DiskError):
            await self._store.write(partial(rows.delete_newer, than=newer_than, lease=lease), frees=True)
            await self.collect()

    async def collect(self) -> None:
        """Remove the files whose rows are gone, but for those that somebody reads just now."""
        async with self._removing:
            while True:
                freed = await self._store.read(
                    lambda connection: rows.freed_files(connection, limit=_REMOVED_AT_ONCE + len(self._in_use))
                )
                gone = await self._run(self._remove, [file for file in freed if file not in self._in_use])
                if not gone:
                    break
                await self._store.write(partial(rows.forget_freed, files=gone), frees=True)
        await self._count()

    async def tick(self) -> None:
        """Free what has lived its time, remove files, and look after orphans. For every few seconds."""
        while await self._store.write(rows.free_expired, frees=True) == rows.EXPIRED_AT_ONCE:
            pass
        await self.collect()
        await self.orphans.tick()

    async def _count(self) -> None:
        self.nbytes = await self._store.read(rows.held_bytes)

    async def _commit(self, pending: list[Incoming], operation: Callable[[Transaction], T]) -> T:
        """Write the rows of these files; once that is done, they are pending no more."""
        failpoints.reach(failpoints.AFTER_SHARD_FILE)
        future = self._store.writer.submit(operation)
        try:
            done = await to_its_end(future)
        finally:
            if future.exception() is None:
                self._arriving.difference_update(incoming.file for incoming in pending)
                pending.clear()
        await self._count()
        return done

    @contextlib.contextmanager
    def _arrivals(self) -> Iterator[list[Incoming]]:
        """Files without a row that are not orphans yet. Those still on the list when the block ends go."""
        pending: list[Incoming] = []
        try:
            yield pending
        finally:
            for incoming in pending:
                incoming.discard()
                self._arriving.discard(incoming.file)

    def _begin(self, name: str, pending: list[Incoming]) -> Incoming:
        incoming = self._files.incoming(name)
        self._arriving.add(incoming.file)
        pending.append(incoming)
        return incoming

    async def _received(self, name: str, body: AsyncIterable[bytes], pending: list[Incoming]) -> Incoming:
        incoming = self._begin(name, pending)
        async for data in _in_pieces(body):
            await self._run(incoming.feed, data)
        return incoming

    def _write(self, tensors: Iterable[Made], pending: list[Incoming]) -> None:
        written: list[Incoming] = []
        for name, form, data in tensors:
            incoming = self._begin(name, pending)
            incoming.describe(form)
            for piece in (data,) if isinstance(data, bytes) else data:
                incoming.feed(piece)
            written.append(incoming)
            if len(written) == SYNCED_TOGETHER:
                self._finish_all(written)
                written = []
        self._finish_all(written)
        self._files.sync()

    def _finish_all(self, written: Sequence[Incoming]) -> None:
        """Several at once: the disk then makes many of them durable in one go. All have ended when this returns."""
        finishing = [self._syncing.submit(incoming.finish) for incoming in written]
        wait(finishing)
        for each in finishing:
            each.result()

    def _finish(self, incoming: Incoming) -> None:
        incoming.finish()
        self._files.sync()

    def _remove(self, files: Sequence[str]) -> list[str]:
        """Returns those that are gone."""
        gone = []
        for file in files:
            try:
                self._files.remove(file)
            except OSError as error:
                logger.warning("the file of a shard can't be removed yet: %s", error)
                break
            gone.append(file)
        return gone

    def _body(self, header: bytes, shards: Sequence[Shard]) -> Iterator[bytes]:
        with self._in_use.holding([shard.file for shard in shards]):
            yield header
            for shard in shards:
                yield from self._files.pieces(shard.file, shard.form)

    async def _run(self, work: Callable[..., T], *values: Any) -> T:
        return await to_its_end(asyncio.get_running_loop().run_in_executor(self._threads, work, *values))


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardService:
    """The shards of this proxy."""

    shelf: Shards
    admission: Admission
    owner: Owner
    settings: SettingsInForce

    async def put(
        self, name: str, pieces: AsyncIterator[bytes], *, declared: int, session: str | None, ttl: float | None
    ) -> tuple[dict[str, Any], bool]:
        """Keep the one tensor of a body of so many bytes, for a session, for a time, or until the first of both ends.

        Returns the reference to it and how long it is kept, as `wire.StoredShard` has them, and whether it was not
        here before.

        Raises NoRoom before any of it is read, InvalidRequest for what is not one tensor, and as `Shards.put`.
        """
        if ttl is None and session is None:
            ttl = DEFAULT_SHARD_TTL
        with self.admission.bytes_on_their_way(declared) as fits:
            if not fits:
                message = "There is no room for this shard now: delete some, or wait until others expire."
                raise NoRoom(message)
            try:
                form, fresh = await self.shelf.put(name, pieces, session=session, ttl=ttl)
            except NotTensors as wrong:
                raise InvalidRequest(f"The body is not one tensor as safetensors: {wrong}.") from None
        # Its id says nothing of its owner, so a public address could not find it again.
        kept_at = self.settings.current.address_of(self.owner.ordinal)
        reference = RemoteTensor(name, kept_at, form.shape, form.dtype)
        return {**reference.as_json(), "bytes": form.nbytes, "session_id": session, "expires_in": ttl}, fresh

    async def delete(self, names: Sequence[str]) -> dict[str, int]:
        """Let go of those that are there; how many they were, and their bytes."""
        deleted, nbytes = await self.shelf.delete(names)
        return {"deleted": deleted, "bytes": nbytes}


class _InUse:
    """Files that are being read, which nobody removes meanwhile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._files)

    def __contains__(self, file: str) -> bool:
        return file in self._files

    @contextlib.contextmanager
    def holding(self, files: Sequence[str]) -> Iterator[None]:
        with self._lock:
            self._files.update(files)
        try:
            yield
        finally:
            with self._lock:
                self._files -= Counter(files)


async def to_its_end(future: "asyncio.Future[T]") -> T:
    """Wait for work that can't be stopped; a caller that is cancelled goes when it has ended, not before."""
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:
        while not future.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait([future])
        future.exception()
        raise


async def _in_pieces(body: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The same bytes, in pieces large enough to be worth a thread's while."""
    gathered: list[bytes] = []
    size = 0
    async for data in body:
        gathered.append(data)
        size += len(data)
        if size >= PIECE:
            yield b"".join(gathered)
            gathered, size = [], 0
    yield b"".join(gathered)
