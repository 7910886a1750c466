"""Stores of unit tests: as a proxy makes them, but copied from one that was made before, and not waited for."""

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_proxy.store import database, schema


@pytest.fixture(scope="session", autouse=True)
def quick_stores() -> Iterator[None]:
    """What a store must do so that a power cut loses nothing is tested in `tests/system`: here none comes."""
    template = sqlite3.connect(":memory:", isolation_level=None)
    template.execute("PRAGMA auto_vacuum = INCREMENTAL")
    schema.migrate(template)
    migrate, set_up = schema.migrate, database._set_up

    def copy(connection: sqlite3.Connection) -> None:
        if schema.version(connection) == 0:
            template.backup(connection)
        migrate(connection)

    def without_the_disk(connection: sqlite3.Connection, *args: Any, **options: Any) -> None:
        connection.execute("PRAGMA synchronous = OFF")
        set_up(connection, *args, **options)
        connection.execute("PRAGMA synchronous = OFF")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(schema, "migrate", copy)
        patched.setattr(database, "_set_up", without_the_disk)
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield
    template.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SyncStore]:
    """A store of the test's own."""
    opened = SyncStore(tmp_path)
    yield opened
    opened.close()
