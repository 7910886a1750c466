"""The fetch buffer of a process that was forked."""

import multiprocessing
import threading
from collections.abc import Iterator

import pytest
from tests.waiting import PATIENCE

from rolloutfleet import remote_tensors
from rolloutfleet.remote_tensors.buffer import PROCESS
from rolloutfleet.tensors import RemoteTensor


@pytest.fixture
def filled() -> Iterator[None]:
    remote_tensors.flush_fetch_buffer()
    for flight in PROCESS.claim([RemoteTensor("shard", "http://a", (100,), "uint8")]).mine:
        PROCESS.land(flight, bytearray(100))
    yield
    remote_tensors.flush_fetch_buffer()


@pytest.mark.usefixtures("filled")
def test_a_forked_process_starts_with_an_empty_one_whoever_held_the_lock() -> None:
    answers = multiprocessing.get_context("fork").Queue()
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with PROCESS._lock:
            held.set()
            done.wait(PATIENCE)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(PATIENCE)
    child = multiprocessing.get_context("fork").Process(
        target=lambda: answers.put(remote_tensors.fetch_buffer_stats()), daemon=True
    )
    child.start()
    done.set()
    holder.join()
    assert answers.get(timeout=PATIENCE) == {"entries": 0, "bytes": 0}
    child.join(PATIENCE)
    assert remote_tensors.fetch_buffer_stats()["entries"] == 1
