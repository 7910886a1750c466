"""The store and its process: one owns the folder, and what it answered outlives it."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.database import open_database


def test_a_second_process_on_the_folder_is_refused(tmp_path: Path) -> None:
    database = open_database(tmp_path)
    code = (
        "import sys, pathlib; from rolloutfleet_proxy.store.database import *; open_database(pathlib.Path(sys.argv[1]))"
    )
    second = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert second.returncode != 0 and "in use by another proxy" in second.stderr
    database.close()
    open_database(tmp_path).close()


KILLED = textwrap.dedent(
    """
    import asyncio, sys
    from pathlib import Path
    from rolloutfleet_proxy.store.writer import ServedClock
    from rolloutfleet_proxy.store.database import open_database
    from rolloutfleet_proxy.domain.ledger import CREATED, DISCARDED, TURNS
    from rolloutfleet_proxy.store.writer import Writer

    def add(n):
        def operation(transaction):
            transaction.set_fact(f"n{n}", n)
            transaction.count(TURNS, CREATED)
            transaction.set_fact(f"m{n}", n)
            transaction.count(TURNS, DISCARDED, reason="test")
        return operation

    async def one(writer, start):
        for n in range(start, start + 100_000):
            await writer.run(add(n))
            print(n, flush=True)

    async def main():
        database = open_database(Path(sys.argv[1]))
        writer = Writer(database, ServedClock(database))
        await asyncio.gather(*(one(writer, lane * 1_000_000) for lane in range(8)))

    asyncio.run(main())
    """
)


@pytest.mark.parametrize("acknowledged", [1, 40, 300])
def test_after_kill_9_all_that_was_answered_is_there_and_nothing_is_half_written(
    tmp_path: Path, acknowledged: int
) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    answered = [process.stdout.readline() for _ in range(acknowledged)]
    os.kill(process.pid, signal.SIGKILL)
    answered += process.stdout.readlines()
    process.wait(timeout=PATIENCE)
    process.stdout.close()

    database = open_database(tmp_path)
    found = dict(database.connect(read_only=True).execute("SELECT name, value FROM facts").fetchall())
    numbers = {int(line) for line in answered if line.endswith("\n")}
    assert len(numbers) >= acknowledged
    assert all(f"n{n}" in found for n in numbers)
    written = {name[1:] for name in found if name[0] == "n" and name[1:].isdigit()}
    assert written == {name[1:] for name in found if name[0] == "m" and name[1:].isdigit()}
    sums = audit(database.connect())
    assert sums["balanced"] and sums["turns"]["created"] == len(written)
