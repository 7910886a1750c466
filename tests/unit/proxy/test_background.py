"""Housekeeping goes on, whatever fails at its start."""

import asyncio
import errno
import sqlite3
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from rolloutfleet_proxy.background import running, sweeping
from rolloutfleet_proxy.services.dumps import owed_on


async def test_sweeps_begin_when_tidying_fails() -> None:
    swept = asyncio.Event()

    async def sweep() -> None:
        swept.set()
        await asyncio.Event().wait()

    dumps = Mock(tidy=AsyncMock(side_effect=sqlite3.OperationalError("disk I/O error")), sweep=sweep)
    settings: Any = SimpleNamespace(current=SimpleNamespace(sessions=SimpleNamespace(cleanup_interval=0)))
    async with running({"sweep": sweeping(dumps, settings)}):
        await asyncio.wait_for(swept.wait(), 5)


def test_disk_of_dumps_owes_nothing_when_it_can_not_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database: Any = SimpleNamespace(folder=tmp_path, reserve=SimpleNamespace(owed=7))
    assert owed_on(tmp_path / "dumps", database)() == 7
    monkeypatch.setattr(Path, "exists", Mock(side_effect=OSError(errno.ENOTCONN, "not connected")))
    assert owed_on(tmp_path / "dumps", database)() == 0
