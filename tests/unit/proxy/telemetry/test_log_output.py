"""The way out of the log: nobody waits for it, what it drops is counted, and what it took is written at the end."""

import contextlib
import os
import select
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_proxy.telemetry.log_output import Output

LINE = b"x" * 1000 + b"\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for end in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(end)


def read_all(descriptor: int) -> bytes:
    return b"".join(iter(lambda: os.read(descriptor, 1 << 16), b""))


def dropped_line(count: int) -> bytes:
    return b"dropped %d\n" % count


def test_lines_come_in_order_and_the_end_waits_for_the_last(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = Output(writing, gathering=10.0)
    for number in range(100):
        output.put(b"%d\n" % number)
    output.close()
    os.close(writing)
    assert read_all(reading).split() == [b"%d" % number for number in range(100)]
    assert output.dropped == 0


def test_lines_of_many_threads_are_whole(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    output = Output(writing, gathering=0.0)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(read_all(reading)))
    marks = (b"a", b"b", b"c")

    def write(mark: bytes) -> None:
        for _ in range(300):
            output.put(mark * 200 + b"\n")

    writers = [threading.Thread(target=write, args=(mark,)) for mark in marks]
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    output.close()
    os.close(writing)
    reader.join()
    assert Counter(got[0].splitlines()) == {mark * 200: 300 for mark in marks}


def fill(writing: int) -> None:
    """Whoever writes to this pipe then waits for its reader."""
    os.set_blocking(writing, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writing, b"\n" * select.PIPE_BUF)
    os.set_blocking(writing, True)


def test_a_blocked_reader_stalls_nobody_and_costs_counted_lines(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, writing = pipe
    fill(writing)
    output = Output(writing, most_bytes=50 * len(LINE), gathering=0.0, dropped_line=dropped_line)
    output.put(LINE * 100)  # larger than the bound: dropped at once

    def put_all() -> None:
        for _ in range(5000):
            output.put(LINE)

    # Nobody reads yet: a `put` that waited for a reader would wait for ever.
    putting = threading.Thread(target=put_all, daemon=True)
    putting.start()
    putting.join(PATIENCE)
    assert not putting.is_alive()
    assert output.waiting <= 50 and output.dropped > 4000
    waits: list[float | None] = []

    def waited(timeout: float | None = None) -> bool:
        waits.append(timeout)
        return output._idle.is_set()

    with monkeypatch.context() as patched:
        patched.setattr(output._idle, "wait", waited)
        output.flush(timeout=0.1)
    assert waits == [0.1] and not output._idle.is_set()

    reader: list[bytes] = []
    thread = threading.Thread(target=lambda: reader.append(read_all(reading)))
    thread.start()
    output.flush()
    output.put(b"again\n")
    output.close()
    os.close(writing)
    thread.join()
    lines = reader[0].splitlines()
    told = [int(line.split()[1]) for line in lines if line.startswith(b"dropped")]
    assert sum(told) == output.dropped and lines.count(LINE.strip()) == 5001 - output.dropped
    assert lines[-1] == b"again"


def test_a_descriptor_that_refuses_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    full = os.open("/dev/full", os.O_WRONLY)
    output = Output(full, gathering=0.0)
    output.put(b"lost\n")
    output.flush()
    assert output.dropped == 1
    output.close()
    output.put(b"too late\n")
    assert output.dropped == 2
    os.close(full)
