"""A store that imports: what it exports before its sessions are dumped and after."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.lifecycle.written import dump_all
from tests.unit.proxy.services import session_service
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import AskExport, ImportDumps, ImportedDump
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.ledger import DUMPED, LIVE, SESSIONS, TURNS
from rolloutfleet_proxy.domain.session import STALE
from rolloutfleet_proxy.domain.trajectory import BY_REWARD
from rolloutfleet_proxy.exports.forms import json_pieces, safetensors
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.lifecycle.adopted import Adopted
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.services.importing import Importer
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.leases import Grant, acknowledge, grant, release
from rolloutfleet_proxy.store.trajectories import close_turns
from rolloutfleet_proxy.store.transaction import Transaction


class Store(SyncStore):
    """A real store with a folder of dumps, and imports as a proxy makes them."""

    def __init__(self, folder: Path, dumps: Path, *, ordinal: int = 0) -> None:
        self.dumps = dumps
        self.ordinal = ordinal
        super().__init__(folder)

    def _open(self) -> None:
        super()._open()
        self.owner = type(self.owner)(self.ordinal, self.database.store_id)
        self.reader = self.store.reader
        self.folder_of_dumps = DumpFolder(self.dumps, self.owner)
        self.adopted = self.wait(Adopted.load(self.reader, self.owner))
        self.wait(self._open_importer())

    async def _open_importer(self) -> None:
        self.shards = await Shards.open(self.folder / "shards", self.store)
        registry = SessionRegistry(self.reader, cache_bytes=0)
        self.importer = Importer(
            self.store,
            self.shards,
            folder_now=lambda: self.folder_of_dumps,
            adopted=self.adopted,
            forget=session_service(self.store, registry).forget,
        )
        await self.importer.recover()

    def _shut(self) -> None:
        self.shards.close()
        super()._shut()

    def import_dumps(self, names: Iterable[str], *, incomplete: bool = False) -> list[ImportedDump]:
        return self.wait(self.importer.run(ImportDumps(names=list(names), incomplete=incomplete)))

    def dump(self, session: int, **given: Any) -> list[str]:
        """Dump a session and let go of it, as a sweep does."""
        names = dump_all(self.connection, self.owner, session, self.dumps, **given)
        self.run(lambda transaction: _let_go(transaction, session))
        return names

    def trajectory(self, session: int, **closed: Any) -> None:
        self.run(lambda transaction: close_turns(transaction, session, closed_by=BY_REWARD, **closed))

    def ask(self, **asked: Any) -> Grant:
        return self.run(lambda transaction: grant(transaction, self.owner, AskExport(**asked)))

    def ack(self, granted: Grant, ids: Sequence[str] | None = None) -> None:
        lease = granted.lease
        assert lease is not None
        self.run(lambda transaction: acknowledge(transaction, lease, ids))

    def exported(self, **asked: Any) -> dict[tuple[str, str], bytes]:
        """What an export of each form and style brings, byte for byte; then it is given back.

        A session that is open comes with the outcome that a sweep gives it.
        """
        self.run(
            lambda transaction: transaction.execute(
                "UPDATE sessions SET outcome = 'aborted', outcome_reason = ? WHERE state = 'open'", (STALE,)
            )
        )
        found: dict[tuple[str, str], bytes] = {}
        for style in ("concat", "individual"):
            granted = self.ask(style=style, discount=0.5, train=["aborted"], **asked)
            found[style, "json"] = b"".join(json_pieces(self.read, granted, {"lease_id": None}))
            found[style, "tensors"] = b"".join(safetensors(self.read, granted, {"lease_id": None}).pieces)
            if granted.lease is not None:
                lease = granted.lease
                self.run(lambda transaction, lease=lease: release(transaction, lease))  # type: ignore[misc]
        return found

    def exported_ids(self, **asked: Any) -> list[str]:
        trajectories = json.loads(self.exported(**asked)["concat", "json"])["trajectories"]
        return [trajectory["trajectory_id"] for trajectory in trajectories]

    def kept(self, name: str) -> bytes | None:
        """The bytes of a shard."""
        shard = self.wait(self.shards.find([name])).get(name)
        return None if shard is None else b"".join(self.shards.pieces(shard))

    def sums(self) -> dict[str, Any]:
        """The ledger, which must balance."""
        found = self.read(audit)
        assert found["balanced"], found
        return found


def refusal(store: Store, names: list[str], **asked: Any) -> tuple[int, str, str]:
    """(status, code, message) of an import that is refused, and leaves all as it was."""
    before, files = store.sums(), sorted(file.name for file in store.dumps.iterdir())
    with pytest.raises(DomainError) as refused:
        store.import_dumps(names, **asked)
    assert (store.sums(), sorted(file.name for file in store.dumps.iterdir())) == (before, files)
    assert store.rows("SELECT * FROM sessions WHERE fate = 'importing'") == []
    return status_of(refused.value), refused.value.code, refused.value.message


def _let_go(transaction: Transaction, session: int) -> None:
    (turns,) = transaction.rows(
        "SELECT count(*) FROM turns LEFT JOIN trajectories ON trajectories.session = turns.session"
        " AND trajectories.number = turns.trajectory WHERE turns.session = ? AND turns.state = 'live'"
        " AND coalesce(trajectories.state, 'ready') = 'ready'",
        (session,),
    )[0]
    transaction.move(TURNS, LIVE, DUMPED, turns)
    transaction.move(SESSIONS, LIVE, DUMPED)
    for table, column in (
        ("annotations", "session"),
        ("turns", "session"),
        ("trajectories", "session"),
        ("sessions", "id"),
    ):
        transaction.execute(f"DELETE FROM {table} WHERE {column} = ?", (session,))
