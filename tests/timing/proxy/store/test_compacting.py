"""How long a step holds up others that gives pages back."""

import time
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.proxy.store.crowd import after_a_crowd

from rolloutfleet_proxy.store import compacting
from rolloutfleet_proxy.store.compacting import compact, give_back
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import ServedClock, Writer


async def test_a_step_is_over_before_it_could_hold_up_a_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write also waits for the disk, which others may keep busy; a step is judged by what it computes."""
    steps: list[float] = []

    def timed(transaction: Transaction, *, owed: int) -> int:
        began = time.thread_time()
        left = give_back(transaction, owed=owed)
        steps.append(time.thread_time() - began)
        return left

    monkeypatch.setattr(compacting, "give_back", timed)
    with closing(open_database(tmp_path)) as database:
        writer = Writer(database, ServedClock(database))
        await after_a_crowd(database, writer)
        assert await compact(database, writer)
        await writer.close()
    assert max(steps) < 0.05, sorted(steps)[-3:]
