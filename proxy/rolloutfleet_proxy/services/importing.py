"""Taking dumps in again: checked, claimed, laid down unseen, made to count in one transaction, and put away.

    check ── claim (rename) ── stage (many transactions) ── arrive (one) ── finish (rename)

A process that dies on the way leaves claims behind. The store knows by a dump's digest whether it arrived, so the next
process of the store finishes what did, and sweeps out and gives back what did not: nothing is lost, nothing is twice.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

from rolloutfleet.dumps.files import DumpName, open_dump, parse_dump_name
from rolloutfleet.dumps.form import Damaged, DumpHead
from rolloutfleet.dumps.reading import digest_of
from rolloutfleet.tensors import Form
from rolloutfleet.wire import DumpState, ImportDumps, ImportedDump
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import (
    AlreadyImported,
    DomainError,
    DumpDamaged,
    DumpIncomplete,
    DumpNotFound,
    InvalidRequest,
    TemporaryFailure,
)
from rolloutfleet_proxy.lifecycle import contents
from rolloutfleet_proxy.lifecycle.adopted import Adopted
from rolloutfleet_proxy.lifecycle.contents import Looked
from rolloutfleet_proxy.lifecycle.folder import DumpFolder, NotClaimed
from rolloutfleet_proxy.services.shards import Shards, to_its_end
from rolloutfleet_proxy.store import imports
from rolloutfleet_proxy.store.imports import Staged
from rolloutfleet_proxy.store.store import Connection, Store
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.telemetry import logger


@dataclass(frozen=True, slots=True)
class _Checked:
    name: DumpName
    head: DumpHead
    digest: str
    shards: int
    """How many there are in it."""


@dataclass(eq=False, slots=True)
class Importer:
    """Imports of one proxy, one after the other."""

    store: Store
    shards: Shards
    folder_now: Callable[[], DumpFolder]
    adopted: Adopted
    forget: Callable[[Iterable[str]], None]
    """Drops what memory holds of sessions whose rows came, or are gone."""
    _folder: DumpFolder = field(init=False)
    """The folder of the import under way."""
    _one_at_a_time: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)

    async def run(self, asked: ImportDumps) -> list[ImportedDump]:
        """Import all that is named, or nothing; returns what came of each dump, in the order asked for.

        Raises InvalidRequest for what is no dump's name, DumpNotFound, AlreadyImported also while it is being imported,
        DumpDamaged, DumpIncomplete, ImportConflict where its session is here, and TemporaryFailure where the folder
        fails.
        """
        names = [_parsed(name) for name in asked.names]
        async with self._one_at_a_time:
            self._folder = self.folder_now()
            try:
                checked = [await self._check(name, incomplete=asked.incomplete) for name in names]
                # Once it has begun, an import goes through, or back, whether or not its caller is still there.
                return await to_its_end(asyncio.create_task(self._import(checked)))
            except OSError as error:
                raise TemporaryFailure(f"Nothing was imported: {error}.") from None

    async def recover(self) -> None:
        """Put right what a process of this store left when it died in the middle of an import.

        Where the folder can't be read, its files wait for the next start: a proxy serves without it.
        """
        await self._undo()
        self._folder = self.folder_now()
        try:
            claimed = await asyncio.to_thread(self._folder.claimed)
        except OSError as error:
            logger.warning("whether an import was cut short is not known, as the folder can't be read: %s", error)
            return
        for name in claimed:
            arrived = await self.store.read(partial(self._arrived_before, name))
            await self._put_away(self._folder.finish if arrived else self._folder.give_back, name)
            logger.info("an import of %s was cut short; it %s", name, "had arrived" if arrived else "can be made again")

    async def _check(self, name: DumpName, *, incomplete: bool) -> _Checked:
        found = await asyncio.to_thread(self._look, name)
        if found.problems:
            raise _damaged(name, found.problems)
        if found.incomplete and not incomplete:
            missing = ", ".join(shard[:128] for shard in found.incomplete[:5])
            raise DumpIncomplete(
                f"{name} is incomplete: {len(found.incomplete)} shards could not be brought in when it was written "
                f"({missing}). With incomplete: true it is imported without them."
            )
        head = DumpHead.model_validate_json(found.head)
        await self.store.read(lambda connection: imports.refuse_known(connection, head, found.digest))
        return _Checked(name, head, found.digest, found.shards)

    def _look(self, name: DumpName) -> Looked:
        state = self._folder.state(name)
        if state != "ready":
            raise _not_there(name, state)
        try:
            return contents.look(self._folder.ready_file(name), str(name))
        except FileNotFoundError:
            raise _not_there(name, self._folder.state(name)) from None
        except Damaged as error:
            raise _damaged(name, [str(error)]) from None

    async def _import(self, dumps: Sequence[_Checked]) -> list[ImportedDump]:
        claimed: list[DumpName] = []
        try:
            for dump in dumps:
                await asyncio.to_thread(self._claim, dump.name)
                claimed.append(dump.name)
            failpoints.reach(failpoints.IMPORT_CLAIMED)
            # In the order of their first life, which exports keep; later trajectories then find what they extend.
            staged = {dump.name: await self._stage(dump) for dump in sorted(dumps, key=_in_order)}
            coming = [staged[dump.name] for dump in dumps]
            arrived, freed = await self.store.free(partial(self._arrive, coming=coming))
        except BaseException:
            await self._undo()
            for name in claimed:
                await self._put_away(self._folder.give_back, name)
            raise
        failpoints.reach(failpoints.IMPORT_COMMITTED)
        for name in claimed:
            await self._put_away(self._folder.finish, name)
            failpoints.reach(failpoints.IMPORT_FINISHED)
        # What memory holds of a session may have been read while only a part of it was there.
        self.forget([*freed, *(name.session_id for name in claimed)])
        return arrived

    def _claim(self, name: DumpName) -> None:
        try:
            self._folder.claim(name)
        except NotClaimed as refused:
            raise _not_there(name, refused.state) from None

    async def _stage(self, dump: _Checked) -> Staged:
        staged = await self.store.write(lambda transaction: imports.begin(transaction, dump.head, dump.digest))
        file = self._folder.claimed_file(dump.name)
        try:
            with closing(contents.turns(file, dump.digest)) as batches:
                while batch := await asyncio.to_thread(next, batches, None):
                    await self.store.write(partial(imports.add_turns, staged=staged, turns=batch))
            if dump.shards:
                with closing(contents.shards(file, dump.digest)) as found:
                    made = ((shard.shard_id, Form(shard.dtype, shard.shape), shard.pieces) for shard in found)
                    await self.shards.restore(made, session=staged.session)
        except Damaged as error:
            raise _damaged(dump.name, [str(error)]) from None
        failpoints.reach(failpoints.IMPORT_STAGED)
        return staged

    def _arrive(self, transaction: Transaction, coming: Sequence[Staged]) -> list[ImportedDump]:
        self.adopted.note(transaction, [each.name.session_id for each in coming])
        return imports.arrive(transaction, coming)

    async def _put_away(self, how: Callable[[DumpName], None], name: DumpName) -> None:
        try:
            await asyncio.to_thread(how, name)
        except OSError as error:
            logger.warning("%s is still claimed: %s; the next start of this proxy fixes that", name, error)

    async def _undo(self) -> None:
        """Sweep out what is staged, however long another program has the store locked: until then it stays claimed."""
        more = True
        while more:
            more, freed = await self.store.free(imports.undo, waits=True)
            self.forget(freed)

    def _arrived_before(self, name: DumpName, connection: Connection) -> bool:
        try:
            with open_dump(self._folder.claimed_file(name)) as file:
                return imports.has_arrived(connection, name, digest_of(file))
        except (Damaged, OSError):
            return False


def _in_order(dump: _Checked) -> tuple[str, int, float]:
    number = dump.name.number
    return dump.head.store_id, dump.head.session.place, float("inf") if number is None else number


def _parsed(name: str) -> DumpName:
    found = parse_dump_name(name)
    if found is None:
        raise InvalidRequest(f"{name[:200]!r} is not a valid dump name.", param="names")
    return found


def _not_there(name: DumpName, state: DumpState | None) -> DomainError:
    if state == "imported":
        return AlreadyImported(f"{name} has been imported before.")
    if state == "importing":
        return AlreadyImported(f"{name} is being imported now.")
    return DumpNotFound(name, param="names")


def _damaged(name: DumpName, problems: Sequence[str]) -> DomainError:
    return DumpDamaged(f"{name} is not imported, as it is damaged: {'; '.join(problems)}.")
