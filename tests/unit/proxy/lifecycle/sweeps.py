"""A real store and folder with a sweeper, and a clock that stands still."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from tests.unit.proxy.stores import new_turn

from rolloutfleet.dumps.reading import decode
from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.stale import Patience, due
from rolloutfleet_proxy.lifecycle.dumping import drafts_of, dump
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.services.sweeping import Orders, Sweeper, look
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.shards.files import Gathered
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.dumps import note_drafts
from rolloutfleet_proxy.store.groups import Freed
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.turns import commit_turn
from rolloutfleet_proxy.telemetry.metrics import Metrics

STALE, UNCLAIMED = 10.0, 100.0


@dataclass
class House:
    """A store, a folder of dumps, and a sweeper."""

    folder: Path
    seconds: float = 0.0
    freed: list[Freed] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    """Shards that every session lacks which refers to some."""
    meanwhile: Callable[[], Any] = lambda: None
    """Done between choosing and freeing."""
    times: Iterator[float] = field(default_factory=partial(count, 1e9))
    """Of dumps; no two are alike."""

    def __post_init__(self) -> None:
        self.database = open_database(self.folder / "store")
        self.store = Store.over(self.database, monotonic=lambda: self.seconds)
        self.owner, self.writer, self.reader = self.store.owner, self.store.writer, self.store.reader
        self.sessions, self.seals = SessionRegistry(self.reader, cache_bytes=1_000_000), Seals()
        self.metrics = Metrics()
        self.dumps = self.folder / "dumps"
        self.sweeper = Sweeper(
            store=self.store,
            registry=self.sessions,
            follow=self.freed.append,
            seals=self.seals,
            metrics=self.metrics,
            gather=self._gather,
            wall=self._wall,
        )

    def _wall(self) -> float:
        self.meanwhile()
        return next(self.times)

    @asynccontextmanager
    async def _gather(self, session: int, metadata: Any) -> AsyncIterator[Gathered]:
        yield Gathered(unreachable=list(self.unreachable))

    async def close(self) -> None:
        await self.sweeper.close()
        await self.store.close()
        self.database.close()

    @property
    def error(self) -> str:
        """Of a group that is failing; empty where none is."""
        return next(iter(self.sweeper.failing.values()), "")

    def orders(self, **more: Any) -> Orders:
        return Orders(Patience(STALE, UNCLAIMED), **({"folder": DumpFolder(self.dumps, self.owner)} | more))

    async def sweep(self, **more: Any) -> None:
        await self.sweeper.sweep(self.orders(**more))

    async def start(self, count: int = 1, *, turns: int = 1, **asked: Any) -> list[tuple[int, str]]:
        """A group; (row id, session_id) of each of its sessions."""
        _, started = await self.writer.run(lambda t: start(t, self.owner, StartSessions(group_size=count, **asked)))
        found = []
        for session in started:
            ((id,),) = await self.rows("SELECT id FROM sessions WHERE name = ?", session.name)
            found.append((id, session.name))
            for number in range(turns):
                await self.commit(id, f"{session.name}-turn-{number}", parent=number or None, covered=2 * number)
        return found

    async def commit(self, session: int, name: str, **given: Any) -> None:
        turn = new_turn(session, name=name, tokens=2 * given.get("covered", 0), **given)
        await self.writer.run(lambda transaction: commit_turn(transaction, turn))

    async def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return await self.reader.run(lambda connection: connection.execute(sql, values).fetchall())

    async def there(self) -> set[str]:
        return {name for (name,) in await self.rows("SELECT name FROM sessions")}

    async def sums(self) -> Any:
        found = await self.reader.run(audit)
        assert found["balanced"], found
        return found

    async def only_dump(self) -> None:
        """Do what a process does that dies between the files and the transaction, for all that is due."""
        patience = Patience(STALE, UNCLAIMED)
        groups, _ = await self.reader.run(lambda c: look(c, after=0, now=self.seconds, patience=patience))
        for group in groups:
            chosen = due(group, now=self.seconds, patience=patience, busy=lambda name: False)
            assert chosen is not None
            wall = self._wall()
            await self.writer.run(partial(note_drafts, drafts=drafts_of(chosen, wall)))
            folder = DumpFolder(self.dumps, self.owner)
            await asyncio.to_thread(dump, folder, self.reader.run_blocking, chosen, owner=self.owner, wall=wall)

    def turns_of(self, file: str) -> list[str]:
        return [turn.turn_id for turn in decode((self.dumps / file).read_bytes()).turns]

    def files(self) -> list[str]:
        return sorted(path.name for path in self.dumps.iterdir()) if self.dumps.exists() else []
