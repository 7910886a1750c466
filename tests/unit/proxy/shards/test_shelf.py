"""Shards: what is put is what is got, bit for bit, until it is let go; files and rows agree whatever happens."""

import asyncio
import errno
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test
from tests.unit.proxy.shards.shelf import Shelf, form_of_all
from tests.unit.proxy.shards.shelf import safetensors as one_tensor

from rolloutfleet.errors import SESSION_DELETED, SESSION_UNKNOWN, SHARD_CONFLICT
from rolloutfleet.tensors import CODES, Form
from rolloutfleet_proxy.domain.errors import DiskFull, DomainError
from rolloutfleet_proxy.http.errors import status_of
from rolloutfleet_proxy.services.shards import SYNCED_TOGETHER
from rolloutfleet_proxy.shards.header import HEADER_LIMIT, NotTensors
from rolloutfleet_proxy.shards.orphans import GRACE, LOOK_EVERY
from rolloutfleet_proxy.store.audit import audit
from rolloutfleet_proxy.store.shards import shards_of_session
from rolloutfleet_proxy.store.tombstones import bury
from rolloutfleet_proxy.store.trajectories import close_session, delete_session

DATA = Form("uint8", (3,))


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    made = Shelf(tmp_path)
    yield made
    made.close()


SHAPES = [(), (0,), (1,), (3, 0, 2), (5,), (2, 3, 4)]


@pytest.mark.parametrize("dtype", CODES)
def test_every_type_and_shape_comes_back_bit_for_bit(shelf: Shelf, dtype: str) -> None:
    made = {f"{dtype}.{at}": form_of_all(dtype, *shape) for at, shape in enumerate(SHAPES)}
    for name, (form, data) in made.items():
        assert shelf.put(name, one_tensor(form, data))
    for name, (form, data) in made.items():
        assert shelf.get(name) == one_tensor(form, data, name=name)
    many = shelf.get(*made)
    assert many is not None
    assert tensors_of(many) == made


def tensors_of(file: bytes) -> dict[str, tuple[Form, bytes]]:
    """What a safetensors file holds, read by hand: no library has all types."""
    length = int.from_bytes(file[:8], "little")
    header = json.loads(file[8 : 8 + length])
    data = file[8 + length :]
    by_code = {code: dtype for dtype, code in CODES.items()}
    return {
        name: (Form(by_code[entry["dtype"]], tuple(entry["shape"])), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def test_the_library_reads_what_is_kept_and_each_tensor_is_aligned(shelf: Shelf) -> None:
    arrays = {
        "bits": np.array([True, False, True]),
        "wide": np.arange(6, dtype=np.int64).reshape(2, 3),
        "one": np.array(2.5, np.float32),
        "none": np.zeros((0, 4), np.float16),
    }
    for name, array in arrays.items():
        shelf.put(name, safetensors.numpy.save({"whatever": array}, metadata={"by": "a trainer"}))
    many = shelf.get(*arrays)
    assert many is not None
    loaded = safetensors.numpy.load(many)
    assert loaded.keys() == arrays.keys()
    for name, array in arrays.items():
        assert loaded[name].dtype == array.dtype and loaded[name].shape == array.shape
        assert loaded[name].tobytes() == array.tobytes()
    length = int.from_bytes(many[:8], "little")
    for entry in json.loads(many[8 : 8 + length]).values():
        width = {"BOOL": 1, "I64": 8, "F32": 4, "F16": 2}[entry["dtype"]]
        assert (8 + length + entry["data_offsets"][0]) % width == 0


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return len(text).to_bytes(8, "little") + text


def entry(dtype: str = "U8", shape: Any = (3,), offsets: Any = (0, 3)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


BAD = {
    "nothing": (b"", "ends within its header"),
    "half a length": (b"\x08\0\0", "ends within its header"),
    "half a header": (header(x=entry())[:20], "ends within its header"),
    "no header": ((0).to_bytes(8, "little"), "at most"),
    "a giant header": ((HEADER_LIMIT + 1).to_bytes(8, "little"), "at most"),
    "a header beyond all": (b"\xff" * 8, "at most"),
    "no JSON": ((3).to_bytes(8, "little") + b"{]}", "not a JSON object"),
    "no text": ((4).to_bytes(8, "little") + b'"\xff\xff"', "not a JSON object"),
    "a list": ((2).to_bytes(8, "little") + b"[]", "not a JSON object"),
    "no tensor": (header(), "holds 0 tensors"),
    "metadata alone": (header(__metadata__={"a": "b"}), "holds 0 tensors"),
    "two tensors": (header(x=entry(), y=entry(offsets=(3, 6))) + b"abcdef", "holds 2 tensors"),
    "no description": (header(x=3), "describes no tensor"),
    "an unknown type": (header(x=entry("Q7")) + b"abc", "dtype is 'Q7'"),
    "a type's other name": (header(x=entry("uint8")) + b"abc", "dtype is 'uint8'"),
    "a type of half bytes": (header(x=entry("F4")) + b"abc", "dtype is 'F4'"),
    "no shape": (header(x={"dtype": "U8", "data_offsets": [0, 3]}) + b"abc", "shape is"),
    "a length below 0": (header(x=entry(shape=(-3,))) + b"abc", "shape is"),
    "a length that is no number": (header(x=entry(shape=(True, 3.0))) + b"abc", "shape is"),
    "endless dimensions": (header(x=entry(shape=(1,) * 65)) + b"abc", "shape is"),
    "tensors that overlap": (header(x=entry(), y=entry()) + b"abc", "data_offsets"),
    "offsets that don't fit": (header(x=entry(offsets=(0, 4))) + b"abcd", "data_offsets"),
    "offsets with a hole": (header(x=entry(offsets=(1, 4))) + b"abcd", "data_offsets"),
    "offsets that are no whole numbers": (header(x=entry(offsets=(0, 3.0))) + b"abc", "data_offsets"),
    "too short": (header(x=entry()) + b"ab", "ends 1 bytes too early"),
    "too long": (header(x=entry()) + b"abcd", "more behind"),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD)
@pytest.mark.parametrize("pieces", [1, 5])
def test_what_is_not_one_tensor_is_refused_and_leaves_nothing(
    shelf: Shelf, body: tuple[bytes, str], pieces: int
) -> None:
    with pytest.raises(NotTensors, match=body[1].replace("[", r"\[")):
        shelf.put("bad", body[0], pieces=pieces)
    assert shelf.files() == [] and shelf.get("bad") is None


def test_an_id_holds_one_tensor_until_it_is_deleted(shelf: Shelf) -> None:
    assert shelf.put("x", one_tensor(DATA, b"abc"), ttl=10)
    [before] = shelf.files()
    assert not shelf.put("x", one_tensor(DATA, b"abc", name="other"), ttl=50)
    assert shelf.store.rows("SELECT expires FROM shards") == [(50.0,)]
    shelf.tick(after=20)
    assert shelf.get("x") is not None, "the second put let its time run anew"
    assert len(shelf.files()) == 1 and before not in shelf.files(), "the newer file is kept"
    others = [(DATA, b"abd"), (Form("int8", (3,)), b"abc"), (Form("uint8", (3, 1)), b"abc")]
    for other in (one_tensor(form, data) for form, data in others):
        with pytest.raises(DomainError) as refused:
            shelf.put("x", other)
        assert (status_of(refused.value), refused.value.code) == (409, SHARD_CONFLICT)
        assert refused.value.should_retry is False
    assert shelf.get("x") == one_tensor(DATA, b"abc", name="x") and len(shelf.files()) == 1
    assert shelf.delete("x", "never there") == (1, 3)
    assert shelf.delete("x", "never there") == (0, 0)
    assert shelf.put("x", one_tensor(DATA, b"abd"), ttl=1)


def test_of_two_that_put_at_once_one_wins(shelf: Shelf) -> None:
    async def put(data: bytes) -> bool:
        body = asyncio.StreamReader()
        body.feed_data(one_tensor(DATA, data))
        body.feed_eof()
        try:
            return (await shelf.shards.put("x", body, ttl=100))[1]
        except DomainError as refused:
            assert refused.code == SHARD_CONFLICT
            return False

    async def at_once() -> list[bool]:
        return await asyncio.gather(*(put(b"ab%d" % number) for number in range(8)))

    won = shelf.run(at_once())
    assert sum(won) == 1
    assert shelf.get("x") == one_tensor(DATA, b"ab%d" % won.index(True), name="x")
    shelf.tick()
    assert len(shelf.files()) == 1


def test_a_session_takes_its_shards_with_it(shelf: Shelf) -> None:
    (row, name), (_, other) = shelf.start_session(), shelf.start_session()
    shelf.put("its", one_tensor(DATA, b"abc"), session=name)
    shelf.put("its for a while", one_tensor(DATA, b"def"), session=name, ttl=5)
    shelf.put("timed", one_tensor(DATA, b"ghi"), ttl=1000)
    found = shelf.store.read(lambda connection: shards_of_session(connection, row))
    assert [(shard.name, shard.form, b"".join(shelf.shards.pieces(shard))) for shard in found] == [
        ("its", DATA, b"abc"),
        ("its for a while", DATA, b"def"),
    ]
    for owner in ({"session": other}, {"ttl": 1.0}):
        with pytest.raises(DomainError, match="another owner"):
            shelf.put("its", one_tensor(DATA, b"abc"), **owner)
    shelf.tick(after=6)
    assert shelf.get("its") and not shelf.get("its for a while")
    shelf.store.run(lambda transaction: close_session(transaction, row))
    shelf.tick()
    assert shelf.get("its") is None and shelf.get("timed"), "the session had nothing to keep, so its rows went"
    assert len(shelf.files()) == 1


def test_a_sweep_frees_the_shards_of_one_session_in_its_own_transaction(shelf: Shelf) -> None:
    (row, name), (_, other_name) = shelf.start_session(), shelf.start_session()
    shelf.put("a", one_tensor(DATA, b"abc"), session=name)
    shelf.put("b", one_tensor(DATA, b"def"), session=other_name)

    def fail(transaction: Any) -> None:
        bury(transaction, [row])
        raise RuntimeError

    with pytest.raises(RuntimeError):
        shelf.store.run(fail)
    shelf.tick()
    assert shelf.get("a") is not None
    shelf.store.run(lambda transaction: bury(transaction, [row]))
    assert shelf.store.freed == [name]
    assert len(shelf.files()) == 2, "files go after the commit"
    shelf.run(shelf.shards.collect())
    assert shelf.get("a") is None and shelf.get("b") is not None and len(shelf.files()) == 1


def test_tensors_of_a_session_can_be_restored_more_than_once_and_never_over_others(shelf: Shelf) -> None:
    row, _ = shelf.start_session()
    shelf.put("there", one_tensor(DATA, b"abc"), ttl=100)
    for _ in range(2):
        shelf.run(shelf.shards.restore([("there", DATA, b"abc"), ("new", DATA, b"def")], session=row))
    shelf.tick()
    assert len(shelf.files()) == 2
    tied = shelf.store.read(lambda connection: shards_of_session(connection, row))
    assert [shard.name for shard in tied] == ["new"]
    with pytest.raises(DomainError) as refused:
        shelf.run(shelf.shards.restore([("newer", DATA, b"ghi"), ("there", DATA, b"xyz")], session=row))
    assert refused.value.code == SHARD_CONFLICT
    assert shelf.get("newer") is None and len(shelf.files()) == 2
    shelf.store.run(lambda transaction: delete_session(transaction, row))
    assert shelf.get("new") is None and shelf.get("there") is not None


def tensors(many: int) -> list[tuple[str, Form, bytes]]:
    return [(f"t{number}", *form_of_all("float32", 2)) for number in range(many)]


def is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


def test_files_that_come_together_are_made_durable_together(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sync waits until another is under way, which one after the other would never come to."""
    two = Barrier(2, timeout=10)
    synced: list[int] = []

    def in_pairs(descriptor: int) -> None:
        if is_file(descriptor):
            synced.append(two.wait())

    monkeypatch.setattr(os, "fsync", in_pairs)
    session, _ = shelf.start_session()
    many = 2 * SYNCED_TOGETHER + 2
    shelf.run(shelf.shards.restore(tensors(many), session=session))
    assert len(synced) == len(shelf.files()) == many


def test_of_files_that_come_together_one_that_fails_takes_all_with_it(
    shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = count(1)

    def full(descriptor: int) -> None:
        if is_file(descriptor) and next(left) == SYNCED_TOGETHER + 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    session, _ = shelf.start_session()
    with pytest.raises(DiskFull):
        shelf.run(shelf.shards.restore(tensors(2 * SYNCED_TOGETHER), session=session))
    assert shelf.files() == []


def test_a_shard_for_a_session_that_is_gone_is_refused(shelf: Shelf) -> None:
    _, name = shelf.start_session()
    # Deleted, but not freed: another of its group is open.
    [(row, deleted), _] = shelf.store.start(2)
    shelf.store.run(lambda transaction: delete_session(transaction, row))
    for session, status, code in (("s0-nobody", 404, SESSION_UNKNOWN), (deleted, 410, SESSION_DELETED)):
        with pytest.raises(DomainError) as refused:
            shelf.put("x", one_tensor(DATA, b"abc"), session=session)
        assert (status_of(refused.value), refused.value.code) == (status, code)
    assert shelf.files() == [] and shelf.put("x", one_tensor(DATA, b"abc"), session=name)


def test_what_is_being_read_stays_until_it_has_been_read(shelf: Shelf) -> None:
    for name in "ab":
        shelf.put(name, one_tensor(DATA, b"abc"), ttl=1)
    body = shelf.shards.body(shelf.run(shelf.shards.find(["a", "b"])).values())
    first = next(body.pieces)
    assert shelf.delete("a", "b") == (2, 6)
    assert len(shelf.files()) == 2 and shelf.shards.nbytes == 0
    assert len(first + b"".join(body.pieces)) == body.size
    shelf.tick()
    assert shelf.files() == []


async def never_ending(begun: asyncio.Event) -> Any:
    yield one_tensor(DATA, b"abc")[:-1]
    begun.set()
    await asyncio.Event().wait()


def test_a_caller_that_leaves_leaves_nothing_behind(shelf: Shelf) -> None:
    async def leave() -> None:
        begun = asyncio.Event()
        putting = asyncio.create_task(shelf.shards.put("x", never_ending(begun), ttl=1))
        await begun.wait()
        putting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await putting

    shelf.run(leave())
    assert shelf.files() == [] and shelf.get("x") is None


@pytest.mark.parametrize("turns", range(1, 12))
def test_a_caller_that_leaves_at_any_moment_leaves_all_or_nothing(shelf: Shelf, turns: int) -> None:
    async def leave() -> None:
        body = asyncio.StreamReader()
        body.feed_data(one_tensor(DATA, b"abc"))
        body.feed_eof()
        putting = asyncio.create_task(shelf.shards.put("x", body, ttl=1))
        for _ in range(turns):
            await asyncio.sleep(0.0003)
        putting.cancel()
        await asyncio.wait([putting])

    shelf.run(leave())
    assert len(shelf.files()) == (shelf.get("x") is not None)
    assert shelf.run(shelf.shards.orphans.count()) == 0


def test_a_file_without_a_row_and_a_row_without_a_file_are_found_and_go_after_a_grace(shelf: Shelf) -> None:
    for name in ("kept", "lost"):
        shelf.put(name, one_tensor(DATA, name.encode()[:3]), ttl=1e6)
    [lost] = [shard.file for shard in shelf.run(shelf.shards.find(["lost"])).values()]
    (shelf.folder / "shards" / lost).unlink()
    stray = shelf.folder / "shards" / f"{'0' * 32}.safetensors"
    stray.write_bytes(one_tensor(DATA, b"abc"))
    (shelf.folder / "shards" / "unfinished.part").write_bytes(b"")
    shelf.reopen()
    assert len(shelf.files()) == 2, "what a dead process left unfinished goes when it starts anew"
    assert shelf.run(shelf.shards.orphans.count()) == 2
    shelf.seconds = GRACE - 1
    shelf.tick()
    assert stray.exists() and shelf.run(shelf.shards.orphans.count()) == 2
    shelf.seconds = GRACE
    shelf.tick()
    shelf.tick()
    assert not stray.exists() and shelf.run(shelf.shards.find(["lost"])) == {}
    assert shelf.run(shelf.shards.orphans.count()) == 0
    assert shelf.get("kept") is not None and shelf.store.read(audit)["shards"] == {"count": 1, "bytes": 3}


def test_what_is_on_its_way_in_or_out_is_no_orphan(shelf: Shelf) -> None:
    async def one(name: str) -> None:
        body = asyncio.StreamReader()
        body.feed_data(one_tensor(DATA, b"abc"))
        body.feed_eof()
        await shelf.shards.put(name, body, ttl=1e6)
        await shelf.shards.delete([name])

    async def all_at_once() -> list[int]:
        coming = asyncio.gather(*(one(f"s{number}") for number in range(150)))
        looks = []
        while not coming.done():
            looks.append(await shelf.shards.orphans.count())
        await coming
        return looks

    looks = shelf.run(all_at_once())
    assert len(looks) > 5 and set(looks) == {0}
    assert shelf.files() == []


def test_orphans_are_looked_for_without_being_asked(shelf: Shelf) -> None:
    shelf.tick()
    stray = shelf.folder / "shards" / f"{'0' * 32}.safetensors"
    stray.write_bytes(b"")
    shelf.seconds = LOOK_EVERY
    shelf.tick()
    shelf.seconds += GRACE
    shelf.tick()
    assert not stray.exists()


def test_an_orphan_that_was_only_young_is_spared(shelf: Shelf) -> None:
    """A file that got its row between two looks is no orphan any more."""
    shelf.put("x", one_tensor(DATA, b"abc"), ttl=1e6)
    [file] = shelf.files()
    rows = shelf.store.rows("SELECT * FROM shards")
    shelf.store.run(lambda transaction: transaction.execute("DELETE FROM shards"))
    shelf.store.run(lambda transaction: transaction.execute("DELETE FROM freed_files"))
    assert shelf.run(shelf.shards.orphans.count()) == 1
    shelf.store.run(
        lambda transaction: transaction.execute(f"INSERT INTO shards VALUES ({', '.join('?' * len(rows[0]))})", rows[0])
    )
    shelf.seconds = GRACE
    shelf.tick()
    assert file.exists() and shelf.get("x") is not None


NAMES = st.sampled_from(["a", "b", "c"])
TENSORS = st.sampled_from(
    [form_of_all("bfloat16", 2, 3), form_of_all("bool", 5), form_of_all("int64"), form_of_all("float32", 0)]
)


class Life(RuleBasedStateMachine):
    """Any order of acts, against a plain dictionary: name -> (form, data, expires, session)."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="shards-"))
        self.shelf = Shelf(self.folder)
        self.model: dict[str, tuple[Form, bytes, float, str | None]] = {}
        self.sessions: list[tuple[int, str]] = []

    def teardown(self) -> None:
        self.shelf.close()
        shutil.rmtree(self.folder)

    @property
    def now(self) -> float:
        return self.shelf.store.seconds

    @rule(name=NAMES, tensor=TENSORS, ttl=st.sampled_from([10.0, 100.0]), pieces=st.integers(1, 3))
    def put(self, name: str, tensor: tuple[Form, bytes], ttl: float, pieces: int) -> None:
        self._put(name, tensor, None, ttl, pieces)

    @rule()
    def start_session(self) -> None:
        self.sessions.append(self.shelf.start_session())

    @rule(name=NAMES, tensor=TENSORS, at=st.integers(0, 2))
    def put_for_session(self, name: str, tensor: tuple[Form, bytes], at: int) -> None:
        if at < len(self.sessions):
            self._put(name, tensor, self.sessions[at][1], None, 1)

    def _put(self, name: str, tensor: tuple[Form, bytes], session: str | None, ttl: float | None, pieces: int) -> None:
        form, data = tensor
        before = self.model.get(name)
        fits = before is None or (before[:2] == tensor and before[3] == session)
        try:
            done = self.shelf.put(name, one_tensor(form, data), pieces=pieces, session=session, ttl=ttl)
        except DomainError as refused:
            assert status_of(refused) == 409 and not fits
        else:
            assert fits and done == (before is None)
            self.model[name] = (form, data, float("inf") if ttl is None else self.now + ttl, session)

    @rule(names=st.lists(NAMES, max_size=3))
    def delete(self, names: list[str]) -> None:
        there = {name: self.model.pop(name) for name in set(names) if name in self.model}
        assert self.shelf.delete(*names) == (len(there), sum(form.nbytes for form, *_ in there.values()))

    @rule(names=st.lists(NAMES, min_size=1, max_size=3))
    def get(self, names: list[str]) -> None:
        file = self.shelf.get(*names)
        if all(name in self.model for name in names):
            assert file is not None
            assert tensors_of(file) == {name: self.model[name][:2] for name in names}
        else:
            assert file is None

    @rule(seconds=st.sampled_from([0.0, 9.0, 50.0]))
    def tick(self, seconds: float) -> None:
        self.shelf.tick(after=seconds)
        self.model = {name: kept for name, kept in self.model.items() if kept[2] > self.now}

    @rule(at=st.integers(0, 2))
    def end_session(self, at: int) -> None:
        if at < len(self.sessions):
            row, name = self.sessions.pop(at)
            self.shelf.store.run(lambda transaction: delete_session(transaction, row))
            self.model = {shard: kept for shard, kept in self.model.items() if kept[3] != name}
            self.shelf.tick()
            self.model = {shard: kept for shard, kept in self.model.items() if kept[2] > self.now}

    @rule()
    def restart(self) -> None:
        self.shelf.reopen()

    @invariant()
    def sums_hold(self) -> None:
        nbytes = sum(form.nbytes for form, *_ in self.model.values())
        assert self.shelf.store.read(audit)["shards"] == {"count": len(self.model), "bytes": nbytes}
        assert self.shelf.shards.nbytes == nbytes
        assert self.shelf.run(self.shelf.shards.orphans.count()) == 0


def test_any_order_of_acts_keeps_what_a_dictionary_would() -> None:
    run_state_machine_as_test(
        Life,
        settings=settings(
            max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=[HealthCheck.too_slow]
        ),
    )
