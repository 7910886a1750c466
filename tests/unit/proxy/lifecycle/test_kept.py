"""Copies of trained sessions: which are drawn, what is in them, and that nothing waits for them or is lost by them."""

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.proxy.lifecycle.kept import MIB, House

from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.files import kept_name, parse_dump_name
from rolloutfleet.dumps.reading import decode
from rolloutfleet.viewing import open_file
from rolloutfleet_proxy.domain.errors import DomainError, DumpDamaged
from rolloutfleet_proxy.domain.keeping import is_drawn
from rolloutfleet_proxy.lifecycle import kept
from rolloutfleet_proxy.services import keeping
from rolloutfleet_proxy.services.keeping import COPIED, FAILED
from rolloutfleet_proxy.store import keeping as rows
from rolloutfleet_proxy.store.dumps import load_dumped_turn
from rolloutfleet_proxy.store.leases import acknowledge, release
from rolloutfleet_proxy.store.trajectories import delete_session
from rolloutfleet_proxy.store.transaction import Transaction


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    house.close()


@given(st.text("abcdef0123456789-", min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_share_is_drawn_and_of_a_larger_one_the_same_and_more(name: str, one: float, other: float) -> None:
    assert is_drawn(name, 1.0) and not is_drawn(name, 0.0)
    assert not is_drawn(name, min(one, other)) or is_drawn(name, max(one, other))


def test_about_as_many_are_drawn_as_the_share_says() -> None:
    assert 0.04 < sum(is_drawn(f"s0-{n:x}", 0.05) for n in range(20_000)) / 20_000 < 0.06


def test_a_trained_session_is_copied_with_all_its_turns_rewards_and_annotations(house: House) -> None:
    [name] = house.talked()
    live = house.sums()
    house.ack(house.ask(session_ids=[name]))
    sums = house.sums()
    assert (sums["sessions"]["acknowledged"], sums["turns"]["acknowledged"], sums["keys"]) == (1, 3, 0)
    assert house.rows("SELECT name FROM tombstones") == [(name,)], "whoever trained waits for no copy"
    assert house.copied() == [kept_name(name)]
    content = (house.files / kept_name(name)).read_bytes()
    assert verify(io.BytesIO(content), name=kept_name(name)) == []
    copy = decode(content)
    assert (copy.head.reason, copy.head.is_kept, copy.head.dumped_at) == ("kept", True, 2e9)
    assert (copy.head.session.session_id, copy.head.session.task_id, copy.head.session.turns) == (name, "task", 4)
    assert [turn.turn_id.removeprefix(name) for turn in copy.turns] == ["-a", "-b", "-c", "-d"]
    assert [turn.reward for turn in copy.turns] == [None, 0.5, None, None]
    assert [turn.discarded for turn in copy.turns] == [False, False, True, False]
    assert (copy.turns[0].annotations["advantage"].shape, copy.turns[0].note) == ((2,), "good")
    assert house.left() == [] and house.sums() == sums and live["turns"]["created"] == sums["turns"]["created"]
    assert house.outcomes() == {COPIED: 1}


def test_a_copy_can_be_looked_at(house: House) -> None:
    [name] = house.trained()
    house.copied()
    [recorded] = open_file(house.files / kept_name(name), lambda ids: [None] * len(ids))
    assert (recorded.name, recorded.facts["kept"], len(recorded.branches)) == (name, "a copy", 3)
    (first, second) = recorded.branches[0].read()
    assert (first.note, second.reward, first.tokens.versions[-1]) == ("good", 0.5, 3)
    assert (first.trajectory_id, sum(second.tokens.loss_mask)) == (f"{name}-trajectory-1", 2)


def test_a_copy_is_never_imported(house: House) -> None:
    [name] = house.trained()
    [file] = house.copied()
    assert parse_dump_name(file) is None
    house.dumps.mkdir()
    shutil.copy(house.files / file, house.dumps / file)
    with pytest.raises(DomainError, match="is not a valid dump name"):
        house.import_dumps([file])
    assert house.folder_of_dumps.listed(after="", limit=1) == []
    shutil.copy(house.files / file, house.dumps / f"{name}-active.json")
    with pytest.raises(DumpDamaged, match="by what it holds its name is"):
        house.import_dumps([f"{name}-active.json"])
    assert house.sums()["turns"]["imported"] == 0


@pytest.mark.parametrize("fraction", [0.0, 0.5, 1.0])
def test_those_that_are_drawn_are_copied_and_no_others(tmp_path: Path, fraction: float) -> None:
    house = House(tmp_path, fraction=fraction)
    try:
        names = [name for _ in range(4) for name in house.trained(group=3)]
        drawn = sorted(kept_name(name) for name in names if is_drawn(name, fraction))
        assert len(drawn) == {0.0: 0, 1.0: 12}.get(fraction, len(drawn))
        assert house.copied() == drawn
        assert house.left() == []
    finally:
        house.close()


def test_a_session_is_copied_when_the_last_of_its_group_is_trained(house: House) -> None:
    first, second = house.talked(group=2)
    house.ack(house.ask(session_ids=[first]))
    assert house.copied() == [], "its rows are still there"
    house.ack(house.ask(session_ids=[second]))
    assert house.copied() == sorted(map(kept_name, (first, second)))


def test_what_is_not_trained_leaves_no_copy(house: House) -> None:
    deleted, given_back, part = house.talked(group=3)
    house.ack(house.ask(session_ids=[part]))
    lease = house.ask(session_ids=[given_back]).lease
    assert lease is not None
    house.run(lambda transaction: release(transaction, lease))
    for name in (part, deleted, given_back):
        ((session,),) = house.rows("SELECT id FROM sessions WHERE name = ?", name)
        house.run(lambda transaction, session=session: delete_session(transaction, session))  # type: ignore[misc]
    assert house.copied() == [] and house.left() == []


def test_the_oldest_copies_go_first(tmp_path: Path) -> None:
    house = House(tmp_path)

    def next_copy(*, most: int, written: int) -> list[str]:
        """What is there once one more session was trained."""
        house.most = most
        house.reopen()
        [name] = house.trained()
        found = house.copied()
        if kept_name(name) in found:
            os.utime(house.files / kept_name(name), (written, written))
        names.append(kept_name(name))
        return found

    names: list[str] = []
    try:
        for written in (3, 2, 1):
            assert next_copy(most=MIB, written=written) == sorted(names)
        sizes = [(house.files / name).stat().st_size for name in names]
        assert next_copy(most=sum(sizes) + 10, written=4) == sorted([names[0], names[1], names[3]]), (
            "the oldest is gone"
        )
        assert next_copy(most=max(sizes) + 10, written=5) == [names[4]]
        assert next_copy(most=100, written=6) == [names[4]], "one that is larger than all may be is not written"
        assert house.outcomes() == {COPIED: 5, FAILED: 1} and house.left() == []
    finally:
        house.close()


def test_of_the_smallest_there_are_so_many_files(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "MOST_FILES", 2)
    names = []
    for _ in range(3):
        names.append(kept_name(*house.trained()))
        house.copied()
    assert house.copied() == sorted(names[1:]) and house.outcomes() == {COPIED: 3}


def test_an_end_waits_for_no_copy_and_the_next_process_makes_it(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    [name] = house.trained()
    read = load_dumped_turn

    def ending(*args: Any, **kwargs: Any) -> Any:
        house.keeping._stopping.set()
        return read(*args, **kwargs)

    monkeypatch.setattr("rolloutfleet_proxy.lifecycle.dumping.load_dumped_turn", ending)
    with pytest.raises(Exception, match=r"^$"):
        house.copied()
    assert list(house.files.iterdir()) == [] and house.outcomes() == {}
    monkeypatch.undo()
    house.reopen()
    assert house.copied() == [kept_name(name)] and house.left() == []


def test_a_tenth_of_the_stores_disk_is_not_for_copies(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "owed_on", lambda *_: lambda: 1)
    disk = os.statvfs(house.folder)
    free = disk.f_bavail * disk.f_frsize
    for total, outcome in ((5 * free, COPIED), (11 * free, FAILED)):
        monkeypatch.setattr(shutil, "disk_usage", lambda _, total=total: SimpleNamespace(total=total))
        house.trained()
        house.copied()
        assert house.outcomes()[outcome] == 1
    assert house.left() == []


def test_a_copy_that_fails_is_counted_and_holds_nothing(house: House, caplog: pytest.LogCaptureFixture) -> None:
    house.files.write_text("no folder")
    [name] = house.trained()
    house.wait(house.keeping.work())
    assert house.outcomes() == {FAILED: 1} and house.left() == []
    assert name in caplog.text


def test_on_a_disk_that_is_full_nothing_waits_for_a_copy(house: House) -> None:
    """As the writer has it there: in what is held for that."""
    [name] = house.talked()
    lease = house.ask(session_ids=[name]).lease
    assert lease is not None

    def in_reserve(transaction: Transaction) -> None:
        transaction.in_reserve = True
        acknowledge(transaction, lease)

    house.run(in_reserve)
    assert house.rows("SELECT head FROM keeping") == [(None,)]
    assert house.copied() == [] and house.outcomes() == {FAILED: 1} and house.left() == []


def test_only_so_many_wait(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "MOST_WAITING", 2)
    house.trained(group=3)
    first = house.wait(house.store.read(rows.load_next))
    assert first is not None and first.head is None, "what is only let go of waits for no copy"
    assert len(house.copied()) == 2
    assert house.outcomes() == {COPIED: 2, FAILED: 1} and house.left() == []
