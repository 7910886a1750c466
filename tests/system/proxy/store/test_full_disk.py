"""A store on a disk that is full: it refuses, keeps what was there, and goes on when there is room."""

from functools import partial
from pathlib import Path

import pytest
from tests.system.disks import fill, small_disk

from rolloutfleet_proxy.domain.errors import DiskFull
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer


def note(transaction: Transaction, *, name: str, value: str) -> None:
    transaction.set_fact(name, value)


async def test_a_real_disk_that_is_full(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=3) as disk:
        database = open_database(disk / "store")
        writer = Writer(database, ServedClock(database))
        await writer.run(partial(note, name="kept", value="x"))
        fill(disk / "ballast")
        with pytest.raises(DiskFull):
            await writer.run(partial(note, name="big", value="y" * 400_000))
        connection = database.connect(read_only=True)
        assert connection.execute("SELECT value FROM facts WHERE name = 'kept'").fetchone() == ("x",)
        connection.close()
        (disk / "ballast").unlink()
        await writer.run(partial(note, name="big", value="y" * 400_000))
        await writer.close()
        database.close()
