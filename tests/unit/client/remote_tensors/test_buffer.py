"""The fetch buffer: bounded, shared by concurrent fetches, and empty of what was cleared, in whatever order."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rolloutfleet import remote_tensors
from rolloutfleet.remote_tensors.buffer import ENTRY_OVERHEAD, PROCESS, FetchBuffer, Flight
from rolloutfleet.tensors import RemoteTensor

NAMES = [f"shard-{at}" for at in range(6)]
LIMIT = 4 * (ENTRY_OVERHEAD + 100)


def reference(name: str, *, size: int = 100, owner: str = "http://a") -> RemoteTensor:
    return RemoteTensor(name, owner, (size,), "uint8")


def fetched(buffer: FetchBuffer, *names: str, size: int = 100) -> list[bytearray]:
    """As a fetch does: brings what nobody else brings."""
    claim = buffer.claim(reference(name, size=size) for name in names)
    for flight in claim.mine:
        buffer.land(flight, bytearray(size))
    return [waiting.result(0) for waiting in claim.waiting]


class AnyOrder(RuleBasedStateMachine):
    """Fetches that begin, land and fail while shards are cleared."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = FetchBuffer(limit=LIMIT)
        self.flying: list[Flight] = []
        self.detached: set[Flight] = set()
        self.cleared: set[str] = set()

    @rule(names=st.lists(st.sampled_from(NAMES), max_size=4), owner=st.sampled_from(["http://a", "http://b"]))
    def claim(self, names: list[str], owner: str) -> None:
        claim = self.buffer.claim(reference(name, owner=owner) for name in names)
        assert len(claim.waiting) == len(names)
        assert len({flight.reference for flight in claim.mine}) == len(claim.mine) <= len(set(names))
        # Who joins a flight gets what it brings.
        for name, waiting in zip(names, claim.waiting, strict=True):
            if waiting.done():
                assert waiting.result(0) == name.encode() + owner.encode()
        self.flying += claim.mine
        # A fetch that began after a clear may be kept again.
        self.cleared -= {flight.reference.shard_id for flight in claim.mine}

    @rule(data=st.data())
    def land(self, data: Any) -> None:
        if self.flying:
            flight = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
            brought = flight.reference.shard_id.encode() + flight.reference.owner.encode()
            self.buffer.land(flight, bytearray(brought))
            assert flight.landed.result(0) == brought
            if flight in self.detached:
                assert self.buffer._entries.get(flight.reference.shard_id) is not flight

    @rule(data=st.data())
    def fail(self, data: Any) -> None:
        if self.flying:
            flight = self.flying.pop(data.draw(st.integers(0, len(self.flying) - 1)))
            self.buffer.fail(flight, OSError("gone"))
            assert isinstance(flight.landed.exception(0), OSError)

    @rule(names=st.lists(st.sampled_from(NAMES)))
    def clear(self, names: list[str]) -> None:
        kept = {name for name in names if name in self.buffer._entries}
        assert self.buffer.clear(names) == len(kept)
        self.detached |= {flight for flight in self.flying if flight.reference.shard_id in names}
        self.cleared |= set(names)

    @rule()
    def flush(self) -> None:
        assert self.buffer.stats()["entries"] == self.buffer.flush()
        self.detached |= set(self.flying)
        self.cleared |= set(NAMES)

    @rule(limit=st.sampled_from([0, ENTRY_OVERHEAD + 50, LIMIT]))
    def change_the_limit(self, limit: int) -> None:
        self.buffer.set_limit(limit)

    @invariant()
    def what_was_cleared_is_not_there(self) -> None:
        assert not self.cleared & set(self.buffer._entries)

    @invariant()
    def it_is_bounded_and_counts_what_it_keeps(self) -> None:
        entries = self.buffer._entries
        nbytes = sum(len(flight.landed.result(0)) for flight in entries.values())
        assert self.buffer.stats() == {"entries": len(entries), "bytes": nbytes}
        assert nbytes + ENTRY_OVERHEAD * len(entries) <= self.buffer._limit
        assert set(self.buffer._flights.values()) <= set(self.flying)


TestAnyOrder = AnyOrder.TestCase


@pytest.mark.parametrize("forget", [lambda buffer: buffer.clear(["a"]), FetchBuffer.flush], ids=["clear", "flush"])
def test_what_is_cleared_on_its_way_is_answered_and_not_kept(forget: Callable[[FetchBuffer], int]) -> None:
    buffer = FetchBuffer()
    before = buffer.claim([reference("a")])
    assert forget(buffer) == 0
    behind = buffer.claim([reference("a")])
    assert len(behind.mine) == 1, "a fetch behind the clear is another one"
    buffer.land(before.mine[0], bytearray(100))
    assert before.waiting[0].done() and not behind.waiting[0].done()
    assert buffer.stats()["entries"] == 0
    buffer.land(behind.mine[0], bytearray(100))
    assert buffer.stats()["entries"] == 1


def test_what_was_used_last_stays_longest() -> None:
    buffer = FetchBuffer(limit=LIMIT)
    fetched(buffer, *NAMES[:4])
    fetched(buffer, NAMES[0])
    fetched(buffer, NAMES[4])
    assert list(buffer._entries) == [NAMES[2], NAMES[3], NAMES[0], NAMES[4]]


def test_more_than_the_limit_is_handed_out_and_not_kept() -> None:
    buffer = FetchBuffer(limit=LIMIT)
    assert len(fetched(buffer, "large", size=LIMIT)[0]) == LIMIT
    assert buffer.stats() == {"entries": 0, "bytes": 0}


def test_empty_tensors_are_bounded_too() -> None:
    buffer = FetchBuffer(limit=10 * ENTRY_OVERHEAD)
    fetched(buffer, *(f"empty-{at}" for at in range(100)), size=0)
    assert buffer.stats() == {"entries": 10, "bytes": 0}


def test_ids_are_taken_once_and_before_the_lock() -> None:
    buffer = FetchBuffer()
    fetched(buffer, *NAMES)

    def slow_ids() -> Iterator[str]:
        for name in NAMES[:2] * 50:
            # Another thread gets in while the ids are still being made.
            assert buffer.stats()["entries"] == 6
            yield name

    assert buffer.clear(slow_ids()) == 2
    assert buffer.stats()["entries"] == 4


@pytest.mark.parametrize("ids", ["shard-0", [1], [None], [b"shard-0"], [["shard-0"]]], ids=repr)
def test_what_are_no_ids_clears_nothing_and_says_so(ids: Iterable[str]) -> None:
    buffer = FetchBuffer()
    fetched(buffer, *NAMES)
    with pytest.raises(TypeError):
        buffer.clear(ids)
    assert buffer.stats()["entries"] == 6


@pytest.fixture
def filled() -> Iterator[None]:
    remote_tensors.flush_fetch_buffer()
    fetched(PROCESS, *NAMES)
    yield
    remote_tensors.flush_fetch_buffer()


@pytest.mark.usefixtures("filled")
def test_nothing_passed_clears_nothing_and_a_flush_everything() -> None:
    assert remote_tensors.clear_fetch_buffer() == 0
    assert remote_tensors.clear_fetch_buffer(None) == 0
    assert remote_tensors.clear_fetch_buffer([]) == 0
    assert remote_tensors.fetch_buffer_stats() == {"entries": 6, "bytes": 600}
    assert remote_tensors.clear_fetch_buffer([NAMES[0], NAMES[1], NAMES[0], "unknown"]) == 2
    assert remote_tensors.fetch_buffer_stats() == {"entries": 4, "bytes": 400}
    assert remote_tensors.flush_fetch_buffer() == 4
    assert remote_tensors.fetch_buffer_stats() == {"entries": 0, "bytes": 0}


def test_a_limit_below_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        FetchBuffer().set_limit(-1)
