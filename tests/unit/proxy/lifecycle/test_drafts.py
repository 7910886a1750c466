"""Dump files whose session was not freed: none stays that could be imported once the store has gone on without it."""

from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.lifecycle.sweeps import STALE, UNCLAIMED, House

from rolloutfleet.dumps.form import DumpHead
from rolloutfleet.dumps.reading import decode
from rolloutfleet.wire import AskExport
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DiskFailed, DiskFull, ImportConflict, StoreBusy
from rolloutfleet_proxy.failpoints import AFTER_DUMP, AFTER_RENAME
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.services import sweeping
from rolloutfleet_proxy.services.sweeping import HOPELESS
from rolloutfleet_proxy.store.imports import refuse_known
from rolloutfleet_proxy.store.leases import acknowledge, grant
from rolloutfleet_proxy.store.trajectories import close_session


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    yield made
    await made.close()


async def unclaimed(house: House, *, turns: int = 1, **asked: Any) -> str:
    """A session whose trajectory is due, and is alone in its group; its name."""
    [(session, name)] = await house.start(turns=turns, **asked)
    await house.writer.run(partial(close_session, session=session))
    house.seconds += UNCLAIMED
    return name


async def train(house: House, name: str) -> None:
    asked = AskExport(session_ids=[name])
    granted = await house.writer.run(lambda transaction: grant(transaction, house.owner, asked, None))
    assert granted.lease is not None
    lease, ids = granted.lease, [member.trajectory_id for member in granted.members]
    await house.writer.run(lambda transaction: acknowledge(transaction, lease, ids))


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*args: Any, **given: Any) -> Any:
        raise error

    return fail


async def refused(house: House, file: str) -> str:
    """Why a file is not imported by the proxy that wrote it."""
    content = (house.dumps / file).read_bytes()
    head: DumpHead = decode(content).head
    with pytest.raises(ImportConflict) as why:
        await house.reader.run(lambda connection: refuse_known(connection, head, decode(content).end.digest))
    return str(why.value)


@pytest.mark.parametrize("error", [StoreBusy(), DiskFull("full"), DiskFailed("no sync")])
async def test_dump_goes_when_its_session_was_not_freed_and_was_trained(
    house: House, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    name = await unclaimed(house)
    with monkeypatch.context() as failing:
        failing.setattr(sweeping, "free", raising(error))
        await house.sweep()
    assert house.files() == [f"{name}-trajectory-1.json"], "the store may go with its pod"
    assert "is here" in await refused(house, house.files()[0])
    await train(house, name)
    assert "went on" in await refused(house, house.files()[0])
    await house.sweep()
    assert house.files() == []
    await house.sweep()
    assert await house.rows("SELECT * FROM drafts") == []


async def test_dump_stays_when_a_later_sweep_frees_its_session(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await unclaimed(house)
    with monkeypatch.context() as failing:
        failing.setattr(sweeping, "free", raising(DiskFailed("no sync")))
        for _ in range(3):
            await house.sweep()
    for _ in range(3):
        await house.sweep()
        assert await house.there() == set() and house.files() == [f"{name}-trajectory-1.json"]
    assert await house.rows("SELECT * FROM drafts") == []


async def test_dump_stays_when_retiring_gives_up_before_its_session(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await unclaimed(house)
    with monkeypatch.context() as failing:
        failing.setattr(sweeping, "free", raising(StoreBusy()))
        await house.sweep()
    for _ in range(2 * HOPELESS):
        await house.start()
    monkeypatch.setattr(sweeping, "dump", raising(OSError("no disk")))
    assert await house.sweeper.retire(house.orders()) == 0
    assert house.files() == [f"{name}-trajectory-1.json"]


async def test_dump_of_open_turns_goes_when_they_are_dumped_as_a_trajectory(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(session, name)] = await house.start()
    house.seconds = STALE
    with monkeypatch.context() as failing:
        failing.setattr(sweeping, "free", raising(StoreBusy()))
        await house.sweep()
    assert house.files() == [f"{name}-active.json"]
    await house.writer.run(partial(close_session, session=session))
    house.seconds += UNCLAIMED
    await house.sweep()
    assert await house.there() == set() and house.files() == [f"{name}-trajectory-1.json"]


async def test_dump_that_lacks_shards_goes_when_its_session_was_trained(house: House) -> None:
    name = await unclaimed(house, metadata={"image": {"type": "remote_tensor"}})
    house.unreachable = ["far"]
    for _ in range(3):
        await house.sweep()
        assert house.files() == [f"{name}-trajectory-1.json"]
    await train(house, name)
    await house.sweep()
    assert house.files() == []


async def test_no_file_is_written_when_the_store_can_not_note_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    name = await unclaimed(house)
    [(_, empty)] = await house.start(turns=0)
    house.seconds += STALE
    with monkeypatch.context() as failing:
        failing.setattr(sweeping, "note_drafts", raising(StoreBusy()))
        await house.sweep()
    assert await house.there() == {name} and house.files() == [] and house.error.startswith("StoreBusy")
    assert empty not in await house.there()
    await house.sweep()
    assert await house.there() == set() and not house.sweeper.failing


async def test_draft_stays_on_the_list_when_the_folder_can_not_be_read(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = await unclaimed(house)
    await house.only_dump()
    await train(house, name)
    with monkeypatch.context() as failing:
        failing.setattr(DumpFolder, "remove", raising(OSError("stale handle")))
        await house.sweeper.tidy(house.orders())
        for _ in range(2):
            await house.sweep()
    assert house.files() == [f"{name}-trajectory-1.json"]
    await house.sweep()
    assert house.files() == []


async def test_file_of_a_draft_s_name_stays_when_it_was_dumped_at_another_time(house: House) -> None:
    """As where the store was restored from a backup that was taken in the middle of a sweep."""
    name = await unclaimed(house)
    await house.only_dump()
    [file] = house.files()
    await house.writer.run(lambda t: t.execute("UPDATE drafts SET dumped_at = dumped_at - 1"))
    await train(house, name)
    await house.sweeper.tidy(house.orders())
    for _ in range(2):
        await house.sweep()
    assert house.files() == [file] and await house.rows("SELECT * FROM drafts") == []


class Killed(BaseException):
    """The process is gone."""


@pytest.mark.parametrize("place", [AFTER_RENAME, AFTER_DUMP])
@pytest.mark.parametrize("trains", [False, True], ids=["restarts", "went on"])
async def test_dump_goes_at_a_start_when_the_sweep_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, trains: bool
) -> None:
    """Also where its session went on in the same life, and nothing of it is in the store any more."""
    house = House(tmp_path)
    name = await unclaimed(house)
    with monkeypatch.context() as dying, pytest.raises(Killed):
        dying.setattr(failpoints, "reach", lambda at: raising(Killed())() if at == place else None)
        await house.sweep()
    if trains:
        await train(house, name)
    await house.close()
    assert house.files() == [f"{name}-trajectory-1.json"]
    house = House(tmp_path)
    await house.sweeper.tidy(house.orders())
    assert house.files() == [] and await house.there() == (set() if trains else {name})
    house.seconds += 2 * UNCLAIMED
    await house.sweep()
    assert house.files() == ([] if trains else [f"{name}-trajectory-1.json"])
    await house.close()
