"""A real store driven from plain code, and turns without an engine."""

import asyncio
import sqlite3
from array import array
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final, TypeVar
from unittest.mock import Mock

from rolloutfleet.wire import StartSessions
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.messages import PLAIN_RULES
from rolloutfleet_proxy.domain.turn import Delivery, Extras, NewTurn
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.store import schema
from rolloutfleet_proxy.store.checksums import GUARDED, install
from rolloutfleet_proxy.store.database import FILE, Database, open_database
from rolloutfleet_proxy.store.sessions import start
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import commit_turn
from rolloutfleet_proxy.store.writer import Writer

T = TypeVar("T")


class SyncStore:
    """A store in a folder, with its real writer, and a clock that stands still until told otherwise."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seconds = 0.0
        self.freed: list[str] = []
        self._runner = asyncio.Runner()
        self._open()

    def _open(self) -> None:
        self.database: Database = open_database(self.folder)
        self.owner = Owner(0, self.database.store_id)
        self.connection = self.database.connect(read_only=True)
        self.store: Store = self._runner.run(self._start())
        self.writer = self.store.writer

    async def _start(self) -> Store:
        return Store.over(self.database, monotonic=lambda: self.seconds, wall=lambda: 1e9 + self.seconds)

    def reopen(
        self, *, after_version: int | None = None, meanwhile: Callable[[Path], object] = lambda file: None
    ) -> None:
        """Close the store and open it again, as a restart does, or the start after one of an earlier schema version.

        `meanwhile` is done to its file.
        """
        self._shut()
        meanwhile(self.folder / FILE)
        if after_version is not None:
            as_of_version(self.folder, after_version)
        self._open()

    def close(self) -> None:
        self._shut()
        self._runner.close()

    def _shut(self) -> None:
        self._runner.run(self.store.close())
        self.connection.close()
        self.database.close()

    def advance(self, seconds: float) -> None:
        self.seconds += seconds

    def run(self, operation: Callable[[Transaction], T]) -> T:
        """Commit one operation, or raise what it raised. `freed` are the sessions whose rows went with it."""
        result, self.freed = self._runner.run(self.writer.free(operation))
        return result

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end, beside the writer."""
        return self._runner.run(work)

    def read(self, query: Callable[[sqlite3.Connection], T]) -> T:
        return query(self.connection)

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        return self.connection.execute(sql, values).fetchall()

    def start(self, count: int = 1, **asked: Any) -> list[tuple[int, str]]:
        """Start a group; returns (row id, session_id) of each."""
        new = StartSessions(group_size=count, **asked)
        _, started = self.run(lambda transaction: start(transaction, self.owner, new))
        return [
            (self.rows("SELECT id FROM sessions WHERE name = ?", session.name)[0][0], session.name)
            for session in started
        ]

    def commit(self, session: int, *, parent: int | None = None, **given: Any) -> int:
        """Commit a turn, see `new_turn`; returns its number."""
        behind = self.rows(
            "SELECT length, prompt_tokens + length(output_ids) / 4 FROM turns WHERE session = ? AND number = ?",
            session,
            parent,
        )
        covered, tokens = behind[0] if behind else (0, 0)
        turn = new_turn(session, parent=parent, covered=covered, tokens=tokens, **given)
        return self.run(lambda transaction: commit_turn(transaction, turn)).number


def refusing_reads(code: int) -> Any:
    """A connection whose reads fail with an error of SQLite."""
    error = sqlite3.OperationalError("refused")
    error.sqlite_errorcode = code
    return Mock(**{"execute.side_effect": error})


def _without_new_columns(table: str, names: Sequence[str]) -> str:
    before = schema._before_12(table)
    return f"""
DROP TRIGGER {table}_row_added; DROP TRIGGER {table}_row_changed;
{"".join(f"ALTER TABLE {table} DROP COLUMN {name};" for name in names)}
UPDATE {table} SET checksum = {before.of()};
{schema._keeping_checksums(table, before)}
"""


_UNDONE: Final = {
    6: "DROP TABLE annotations;",
    7: "".join(
        f"ALTER TABLE sessions DROP COLUMN {name};"
        for name in (
            *("branches", "output_tokens", "version_min", "version_max", "rewarded", "reward", "reward_turn"),
            "last_activity_at",
        )
    ),
    8: "DROP TABLE keeping;",
    9: "ALTER TABLE sessions DROP COLUMN episode_turns; UPDATE leases SET request = json_remove(request, '$.credit');",
    10: "".join(f"ALTER TABLE sessions DROP COLUMN {name};" for name in ("outcome", "outcome_reason", "met_limit")),
    11: "".join(
        [
            *(f"DROP TRIGGER {table}_row_added; DROP TRIGGER {table}_row_changed;" for table in GUARDED),
            *(f"ALTER TABLE {table} DROP COLUMN checksum;" for table in GUARDED),
            *(f"DROP TRIGGER turn_{name};" for name in ("added", "changed", "hidden", "removed")),
            "DROP TABLE turn_checksums; DELETE FROM facts WHERE name = 'without_checksums';",
        ]
    ),
    13: "DROP TABLE drafts;",
    12: "DROP INDEX sessions_by_deadline;"
    + "".join(_without_new_columns(table, names) for table, names in schema._NEW_12.items()),
}


def as_of_version(folder: Path, version: int) -> None:
    """Make of a store that is closed what an earlier program would have written."""
    with closing(sqlite3.connect(folder / FILE)) as connection:
        install(connection)
        for step in range(schema.version(connection), version, -1):
            connection.executescript(_UNDONE[step])
        connection.execute(f"PRAGMA user_version = {version}")


def alter(folder: Path, sql: str, *values: Any) -> None:
    """Change a store's rows as a disk might: their checksums stay as they were."""
    with closing(sqlite3.connect(folder / FILE, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        triggers = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        assert connection.execute(sql, values).rowcount
        for _, made_by in triggers:
            connection.execute(made_by)
        connection.execute("COMMIT")


class InlineStore(Writer):
    """A store in memory that commits at once."""

    def __init__(self) -> None:
        self.connection = sqlite3.connect(":memory:", isolation_level=None)
        schema.migrate(self.connection)

    async def run(self, operation: Callable[[Transaction], T], *, frees: bool = False, waits: bool = False) -> T:
        return operation(Transaction(self.connection, served=0.0, wall=0.0))


def new_turn(
    session: int,
    *,
    name: str,
    parent: int | None = None,
    covered: int = 0,
    tokens: int = 0,
    asks: str | None = None,
    prompt: Sequence[int] = (1, 2),
    output: Sequence[int] = (3, 4),
    logprobs: Sequence[float] | None = None,
    version: int = 0,
    delivered: bool = True,
    lineage: Lineage = MAIN,
    **given: Any,
) -> NewTurn:
    """A turn as a generation would make it.

    `asks` stands for its request: equal ones are of equal history. The parent covers `covered` messages and `tokens`.
    """
    request = blake2b((asks or name).encode(), digest_size=16).digest()
    text = " ".join(map(str, output[:8]))
    fields: dict[str, Any] = {
        "session": session,
        "name": name,
        "parent": parent,
        "delivered": Delivery.ARRIVED if delivered else Delivery.LOST,
        "history": blake2b(request + name.encode(), digest_size=16).digest(),
        "request": request,
        "body": request,
        "idempotency_key": None,
        "start": covered,
        "length": covered + 2,
        "matching": Matching(PLAIN_RULES.name, lineage=lineage),
        "messages": [{"role": "user", "content": asks or name}],
        "tools": None,
        "output": {"role": "assistant", "content": text},
        "prompt_ids": array("i", prompt),
        "prompt_tokens": tokens + len(prompt),
        "output_ids": array("i", output),
        "logprobs": array("f", [-0.5] * len(output) if logprobs is None else logprobs),
        "versions": [(version, len(output))],
        "finish_reason": "stop",
        "mixed_cache": False,
        "run": 0,
        "extras": Extras(),
        "created_at": 1e9,
    }
    return NewTurn(**(fields | given))
