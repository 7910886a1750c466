"""The sweep over a real store and folder, with a clock that stands still: who goes, who is spared, what is left."""

import asyncio
import errno
import os
import sqlite3
from collections.abc import AsyncIterator, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.unit.proxy.lifecycle.sweeps import STALE, UNCLAIMED, House
from tests.unit.proxy.stores import alter, new_turn, refusing_reads

from rolloutfleet.dumps.reading import decode
from rolloutfleet.wire import AskExport, StartSessions
from rolloutfleet_proxy.domain.session import REST, Gone
from rolloutfleet_proxy.lifecycle import dumping
from rolloutfleet_proxy.lifecycle.folder import DumpFolder
from rolloutfleet_proxy.services.sweeping import HOPELESS, RECLAIMED_BYTES
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.store.annotations import Annotations, annotate
from rolloutfleet_proxy.store.compacting import compact
from rolloutfleet_proxy.store.damage import damaged_turns
from rolloutfleet_proxy.store.database import store_bytes
from rolloutfleet_proxy.store.groups import Freed
from rolloutfleet_proxy.store.leases import grant, release
from rolloutfleet_proxy.store.sessions import start, touch
from rolloutfleet_proxy.store.tombstones import TOMBSTONE_AGE
from rolloutfleet_proxy.store.trajectories import close_session
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.turns import commit_turn
from rolloutfleet_proxy.telemetry.metrics import by_label, total


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = House(tmp_path)
    yield made
    await made.close()


async def test_a_stale_session_is_dumped_and_freed(house: House) -> None:
    [(session, name)] = await house.start(turns=3)
    house.seconds = STALE - 0.01
    await house.sweep()
    assert await house.there() == {name} and house.files() == []
    house.seconds = STALE
    await house.sweep()
    assert await house.there() == set()
    assert house.files() == [f"{name}-active.json"]
    sums = await house.sums()
    assert (sums["turns"]["dumped"], sums["sessions"]["dumped"], sums["keys"]) == (3, 1, 0)
    assert await house.rows("SELECT reason, dumped FROM tombstones") == [("stale", f"[{REST}]")]
    assert house.freed == [Freed((name,), 1, 3, ((session, 3),))] and by_label(house.metrics.sessions_reclaimed) == {
        "stale": 1
    }


async def test_whoever_touches_it_meanwhile_keeps_it(house: House) -> None:
    """The rows decide, in the transaction that would free them."""
    [(session, name)] = await house.start()
    house.seconds = STALE + 1
    house.meanwhile = lambda: house.writer.submit(lambda transaction: touch(transaction, session))
    await house.sweep()
    assert await house.there() == {name}
    assert house.files() == [], "what was written for nothing is taken back"
    assert by_label(house.metrics.sessions_reclaimed) == {} and not house.sweeper.failing
    house.meanwhile = lambda: None
    await house.sweep()
    assert await house.there() == {name}
    house.seconds += STALE
    await house.sweep()
    assert house.files() == [f"{name}-active.json"]


async def test_what_a_trainer_says_of_it_meanwhile_is_in_the_file_of_a_later_sweep(house: House) -> None:
    [(session, name)] = await house.start()
    ((turn,),) = await house.rows("SELECT name FROM turns WHERE session = ?", session)
    house.seconds = STALE + 1
    said = Annotations([], {turn: "looked at"})
    house.meanwhile = lambda: house.writer.submit(lambda transaction: annotate(transaction, session, said))
    await house.sweep()
    assert await house.there() == {name} and house.files() == []
    house.meanwhile = lambda: None
    await house.sweep()
    (file,) = house.files()
    assert [each.note for each in decode((house.dumps / file).read_bytes()).turns] == ["looked at"]


async def test_a_call_that_comes_while_the_group_is_looked_at_keeps_it(house: House) -> None:
    [(_, name)] = await house.start()
    house.seconds = STALE + 1
    session: Any = await house.sessions.named(name)
    with session.calls.arriving():
        await house.sweep()
    assert await house.there() == {name}


async def test_members_of_a_group_wait_for_each_other(house: House) -> None:
    [(one, first), (two, second)] = await house.start(2)
    house.seconds = STALE - 1
    await house.writer.run(lambda transaction: touch(transaction, two))
    house.seconds = STALE + 5
    await house.sweep()
    assert await house.there() == {first, second}
    await house.writer.run(lambda transaction: close_session(transaction, one))
    house.seconds = 2 * STALE
    await house.sweep()
    assert await house.there() == {first}, "the open one is stale, the ended one now waits for a trainer"
    house.seconds += UNCLAIMED - 1
    await house.sweep()
    assert await house.there() == {first}
    house.seconds += 1
    await house.sweep()
    assert await house.there() == set()
    assert set(house.files()) == {f"{first}-trajectory-1.json", f"{second}-active.json"}
    assert dict(await house.rows("SELECT name, reason FROM tombstones")) == {first: "unclaimed", second: "stale"}
    assert by_label(house.metrics.sessions_reclaimed) == {"stale": 1, "unclaimed": 1}


async def test_what_is_leased_keeps_its_group(house: House) -> None:
    """Others of it too, that nobody has used for long."""
    (one, first), (_, second) = await house.start(2)
    await house.writer.run(lambda transaction: close_session(transaction, one))
    asked = AskExport(session_ids=[first], lease_seconds=10 * STALE)
    granted = await house.writer.run(lambda transaction: grant(transaction, house.owner, asked, None))
    lease = granted.lease
    assert lease is not None
    house.seconds = 2 * STALE
    await house.sweep()
    assert await house.there() == {first, second}
    await house.writer.run(lambda transaction: release(transaction, lease))
    await house.sweep()
    assert await house.there() == {first}


async def test_a_session_without_turns_leaves_no_file(house: House) -> None:
    await house.start(turns=0)
    house.seconds = STALE
    await house.sweep()
    sums = await house.sums()
    assert sums["sessions"]["discarded"] == {"empty": 1} and house.files() == []


async def test_without_a_folder_turns_are_discarded_and_counted_so(house: House) -> None:
    await house.start(turns=2)
    house.seconds = STALE
    await house.sweep(folder=None)
    sums = await house.sums()
    assert sums["turns"]["discarded"] == {"no_dump_path": 2} and sums["sessions"]["discarded"] == {"no_dump_path": 1}
    assert await house.there() == set() and await house.rows("SELECT dumped FROM tombstones") == [("[]",)]


@pytest.mark.parametrize("ends", [False, True], ids=["stale", "unclaimed"])
async def test_an_evaluation_is_discarded_under_a_reason_of_its_own_and_is_in_no_file(house: House, ends: bool) -> None:
    (one, _), _ = await house.start(2, turns=2, train=False)
    if ends:
        for session in (one, one + 1):
            await house.writer.run(partial(close_session, session=session))
    house.seconds = (UNCLAIMED if ends else STALE) - 0.01
    await house.sweep()
    assert len(await house.there()) == 2
    house.seconds += 0.01
    await house.sweep()
    assert await house.there() == set() and house.files() == []
    sums = await house.sums()
    assert sums["turns"]["discarded"] == {"evaluation": 4} and sums["sessions"]["discarded"] == {"evaluation": 2}
    assert dict(await house.rows("SELECT reason, dumped FROM tombstones")) == {"unclaimed" if ends else "stale": "[]"}


async def test_a_damaged_turn_and_what_extends_it_are_in_no_dump_and_counted_so(house: House) -> None:
    [(session, name)], [(lost, gone)] = await house.start(turns=3), await house.start(turns=1)
    alter(house.folder / "store", "UPDATE turns SET logprobs = output_ids WHERE session = ? AND number = 2", session)
    alter(house.folder / "store", "UPDATE turns SET reward = 1.0 WHERE session = ?", lost)
    house.seconds = STALE
    await house.sweep()
    assert house.files() == [f"{name}-active.json"] and not house.sweeper.failing
    dumped = decode((house.dumps / house.files()[0]).read_bytes())
    assert (dumped.head.damaged, [turn.number for turn in dumped.turns]) == ([2, 3], [1])
    sums = await house.sums()
    assert (sums["turns"]["dumped"], sums["turns"]["discarded"]) == (1, {"damaged": 3})
    assert (sums["sessions"]["dumped"], sums["sessions"]["discarded"]) == (1, {"damaged": 1})
    told = await house.rows("SELECT name, dumped FROM tombstones ORDER BY id")
    assert told == [(name, f"[{REST}]"), (gone, "[]")]


async def test_session_stays_whole_when_a_read_of_its_turns_fails(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, name)] = await house.start(turns=3)
    house.seconds = STALE
    with monkeypatch.context() as patched:
        refusing = refusing_reads(sqlite3.SQLITE_IOERR_READ)
        patched.setattr(dumping, "damaged_turns", lambda _, **asked: damaged_turns(refusing, **asked))
        await house.sweep()
    assert house.error == "OperationalError: refused"
    assert await house.there() == {name} and house.files() == []
    await house.sweep()
    assert house.files() == [f"{name}-active.json"] and (await house.sums())["turns"]["dumped"] == 3


async def test_no_session_goes_whose_dump_is_no_dump_when_it_is_read_back(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    [(_, name)] = await house.start(turns=2)
    house.seconds = STALE
    write = DumpFolder._write

    def write_badly(folder: DumpFolder, file: Path, pieces: Iterable[bytes]) -> None:
        write(folder, file, pieces)
        content = file.read_bytes()
        file.write_bytes(content.replace(b'"finish_reason":"stop"', b'"finish_reason":"st0p"', 1))

    with monkeypatch.context() as patched:
        patched.setattr(DumpFolder, "_write", write_badly)
        await house.sweep()
    assert "UnreadableDump" in house.error and "digest" in house.error
    assert await house.there() == {name} and house.files() == []
    await house.sweep()
    assert await house.there() == set() and house.files() == [f"{name}-active.json"]


async def test_one_bad_group_holds_up_nobody_and_is_tried_again(house: House) -> None:
    [(_, bad)] = await house.start()
    good = [(await house.start())[0][1] for _ in range(200)]
    house.dumps.mkdir()
    # Something of that name is there, and no dump of this session.
    (house.dumps / f"{bad}-active.json").write_text("no dump")
    house.seconds = STALE
    await house.sweep()
    assert await house.there() == {bad}
    assert len(house.files()) == 1 + len(good)
    assert house.error.startswith("DumpConflict") and total(house.metrics.dump_failures) == 1
    assert (house.dumps / f"{bad}-active.json").read_text() == "no dump", "nothing is overwritten"
    (house.dumps / f"{bad}-active.json").unlink()
    await house.sweep()
    assert await house.there() == set() and not house.sweeper.failing
    assert (await house.sums())["turns"]["dumped"] == 201
    assert house.sweeper.released == 2 * 201 * RECLAIMED_BYTES, "the allocator is told of what went"


async def test_sessions_wait_for_room_on_a_full_disk_and_those_without_turns_go(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    [(_, first)], [(_, second)] = await house.start(), await house.start()
    await house.start(turns=0)
    house.seconds = STALE
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", refuse)
        await house.sweep()
    assert await house.there() == {first, second} and house.files() == []
    assert house.error.startswith("waits for room: the disk of") and total(house.metrics.dump_failures) == 0
    await house.sweep()
    assert await house.there() == set() and len(house.files()) == 2 and not house.sweeper.failing


async def test_many_bad_groups_hold_up_others_for_one_sweep_at_the_most(house: House) -> None:
    bad = [(await house.start())[0][1] for _ in range(HOPELESS + 4)]
    good = (await house.start())[0][1]
    house.dumps.mkdir()
    for name in bad:
        (house.dumps / f"{name}-active.json").write_text("no dump")
    house.seconds = STALE
    await house.sweep()
    assert good in await house.there() and len(house.sweeper.failing) == HOPELESS
    await house.sweep()
    assert await house.there() == set(bad) and len(house.sweeper.failing) == len(bad)
    (house.dumps / f"{bad[-1]}-active.json").unlink()
    await house.sweep()
    assert await house.there() == set(bad[:-1]), "behind many that fail again"


async def test_what_lacks_tensors_is_kept_and_tried_at_each_sweep(house: House) -> None:
    lacking = [(await house.start(metadata={"image": {"type": "remote_tensor"}}))[0][1] for _ in range(3)]
    whole = [(await house.start())[0][1] for _ in range(3)]
    house.unreachable = ["far"]
    house.seconds = STALE
    for sweep in (1, 2, 3):
        await house.sweep()
        assert await house.there() == set(lacking) and len(house.sweeper.failing) == 3
        assert total(house.metrics.dump_failures) == 3 * sweep and "far" in house.error
        assert len(house.files()) == len(lacking) + len(whole), "marked, and there"
    assert decode((house.dumps / f"{lacking[0]}-active.json").read_bytes()).end.incomplete == ["far"]
    house.unreachable = []
    await house.sweep()
    assert await house.there() == set() and not house.sweeper.failing
    assert decode((house.dumps / f"{lacking[0]}-active.json").read_bytes()).end.incomplete == []


async def test_a_dump_left_by_a_crash_is_replaced_by_what_the_session_holds_now(house: House) -> None:
    [(session, name)] = await house.start(turns=1)
    house.seconds = STALE
    await house.only_dump()
    assert house.turns_of(f"{name}-active.json") == [f"{name}-turn-0"]
    await house.commit(session, "later", parent=1, covered=2)
    house.seconds += STALE
    await house.sweep()
    assert house.turns_of(f"{name}-active.json") == [f"{name}-turn-0", "later"]
    assert await house.there() == set() and not house.sweeper.failing


async def test_what_a_crash_left_in_the_folder_is_tidied(house: House) -> None:
    [(_, freed)] = await house.start()
    house.seconds = STALE
    await house.sweep()
    [(_, left)] = await house.start()
    [(_, of_a_backup)] = await house.start(turns=2)
    house.seconds += STALE
    await house.only_dump()
    (house.dumps / f"{of_a_backup}-active.json").write_bytes((house.dumps / f"{freed}-active.json").read_bytes())
    for unfinished in (f".0-{left}-active.json.tmp", f".1-{left}-active.json.tmp"):
        (house.dumps / unfinished).write_text("half")
    assert f"{left}-active.json" in house.files()
    await house.sweeper.tidy(house.orders())
    expected = {f"{freed}-active.json", f"{of_a_backup}-active.json", f".1-{left}-active.json.tmp"}
    assert set(house.files()) == expected, "of another proxy, or of another time: these stay"
    await house.sweep()
    assert set(house.files()) == expected | {f"{left}-active.json"}
    assert await house.there() == {of_a_backup} and house.error


async def test_what_is_no_dump_holds_up_neither_tidying_nor_keeping_nor_the_sweep(house: House) -> None:
    [(_, name)] = await house.start()
    house.seconds = STALE
    await house.sweep(keep_age=100.0)
    (house.dumps.parent / "secret").write_text("secret")
    [(_, here)] = await house.start()
    os.mkfifo(house.dumps / f"{here}-active.json")
    (house.dumps / f"{here}-trajectory-1.json").symlink_to(house.dumps.parent / "secret")
    (house.dumps / "s0-0123456789ab-0011223344556677-active.json").mkdir()
    (house.dumps / f".0-{here}-active.json.tmp").symlink_to(house.dumps.parent / "secret")
    strangers = set(house.files()) - {f"{name}-active.json", f".0-{here}-active.json.tmp"}
    await house.sweeper.tidy(house.orders())
    house.seconds += STALE + 100
    await house.sweep(keep_age=100.0)
    assert set(house.files()) == strangers, "what is too old goes, and what is no dump stays"
    assert await house.there() == {here} and "is there already" in house.error
    (house.dumps / f"{here}-active.json").unlink()
    (house.dumps / f".0-{here}-active.json.tmp").symlink_to(house.dumps.parent / "secret")
    await house.sweep(keep_age=100.0)
    assert await house.there() == set() and (house.dumps.parent / "secret").read_text() == "secret"


async def test_dumps_are_kept_by_age_and_by_bytes(house: House) -> None:
    names = []
    for _ in range(4):
        names += [name for _, name in await house.start()]
        house.seconds += STALE
        await house.sweep(keep_age=1000.0)
    assert house.files() == sorted(f"{name}-active.json" for name in names)
    size = (house.dumps / f"{names[0]}-active.json").stat().st_size
    await house.sweep(keep_bytes=2 * size + 100)
    assert house.files() == sorted(f"{name}-active.json" for name in names[2:])
    await house.sweep(keep_bytes=1)
    assert house.files() == [f"{names[3]}-active.json"], "what the newest sweep wrote stays"
    house.seconds += 999
    await house.sweep(keep_age=1000.0)
    assert len(house.files()) == 1
    house.seconds += 1
    await house.sweep(keep_age=1000.0)
    assert house.files() == []
    assert await house.rows("SELECT * FROM dump_files") == []


async def test_thousands_of_sessions_come_and_go_and_the_file_is_small_again(house: House) -> None:
    """All of it but the tombstones, which are bounded."""
    new = StartSessions(group_size=50)

    def begin(transaction: Transaction, number: int) -> None:
        _, started = start(transaction, house.owner, new)
        for session in started:
            ((id,),) = transaction.rows("SELECT id FROM sessions WHERE name = ?", (session.name,))
            commit_turn(transaction, new_turn(id, name=session.name, output=range(1500)))

    await asyncio.gather(*(house.writer.run(partial(begin, number=number)) for number in range(60)))
    assert len(await house.there()) == 3_000
    most = store_bytes(house.database.folder)
    house.seconds = STALE
    await house.sweep(folder=None)
    assert await house.there() == set()
    assert await compact(house.database, house.writer)
    sums = await house.sums()
    assert sums["sessions"]["discarded"] == {"no_dump_path": 3_000} and sums["keys"] == 0
    [(tombstones,)] = await house.rows("SELECT sum(pgsize) FROM dbstat WHERE name LIKE '%tombstones%'")
    assert house.database.path.stat().st_size < tombstones + 2_000_000 < most / 5


async def test_a_reclaimed_session_is_known_as_long_as_its_tombstone_lasts(house: House) -> None:
    """By name and by key; then neither was ever known."""
    new = StartSessions()
    _, [started] = await house.writer.run(lambda transaction: start(transaction, house.owner, new))
    house.seconds = STALE
    await house.sweep()
    gone = Gone(started.name, "stale", ())
    assert await house.sessions.named(started.name) == await house.sessions.with_key(started.key) == gone
    house.seconds += TOMBSTONE_AGE
    await house.sweep()
    assert await house.sessions.named(started.name) == gone
    house.seconds += 1
    await house.sweep()
    assert await house.sessions.named(started.name) is None
    assert await house.sessions.with_key(started.key) is None


async def test_an_empty_batch_of_dumps_is_no_failure(house: House) -> None:
    """A folder that can't be written is no matter for sessions without turns."""
    house.dumps.parent.mkdir(exist_ok=True)
    house.dumps.write_text("a file where the folder should be")
    [(_, empty)] = await house.start(turns=0)
    [(_, full)] = await house.start(turns=1)
    house.seconds = STALE
    await house.sweep()
    assert await house.there() == {full} and empty not in await house.there()
    assert house.error
    house.dumps.unlink()
    await house.sweep()
    assert await house.there() == set() and not house.error


async def test_a_store_that_goes_gives_everything_to_dumps_but_what_is_in_use(house: House) -> None:
    [(_, fresh)] = await house.start(stale_after=1e6)
    (_, open_member), (second, closed_member) = await house.start(2)
    await house.writer.run(lambda t: close_session(t, second))
    [(_, busy)] = await house.start()
    session = await house.sessions.named(busy)
    assert isinstance(session, Session)
    with session.calls.arriving():
        assert await house.sweeper.retire(house.orders()) == 3
    assert await house.there() == {busy}
    assert {name.rsplit("-", 1)[0].removesuffix("-trajectory") for name in house.files()} >= {fresh, open_member}
    gone = await house.sessions.named(closed_member)
    assert isinstance(gone, Gone) and gone.reason == "retired"
    assert (await house.sums())["turns"]["dumped"] == 3
    assert await house.sweeper.retire(house.orders()) == 1, "its call has ended"
    assert await house.there() == set()


async def test_retiring_writes_every_file_when_the_owner_of_shards_does_not_answer(house: House) -> None:
    house.unreachable = ["far"]
    for _ in range(3 * HOPELESS):
        await house.start(metadata={"image": {"type": "remote_tensor"}})
    [(_, whole)] = await house.start()
    assert await house.sweeper.retire(house.orders()) == 1
    assert whole not in await house.there()
    assert len(house.files()) == 3 * HOPELESS + 1 and len(house.sweeper.failing) == 3 * HOPELESS
