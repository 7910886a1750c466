"""When memory is given back: decided by what was freed, absent where the C library has no such thing."""

import ctypes
from pathlib import Path

import pytest
from tests import apart

from rolloutfleet.settings import AllocatorSettings
from rolloutfleet_proxy.process import allocator
from rolloutfleet_proxy.process.allocator import LONG_TRIM, MAX_TRIM_DELAY, TRIM_BYTES, Trimming, is_due

MIB = 1 << 20


@pytest.mark.parametrize(
    ("freed", "since", "last_took", "quiet", "settled", "due"),
    [
        (0, 1e9, 0.0, True, True, False),
        (0, 1.0, 0.0, True, False, True),
        (0, 1.0, 0.0, False, False, False),
        (1, 1.0, 0.0, True, True, True),
        (TRIM_BYTES - 1, 1e9, 0.0, False, False, False),
        (TRIM_BYTES, 1.0, LONG_TRIM, False, True, True),
        (TRIM_BYTES, 1.0, LONG_TRIM * 1.1, False, True, False),
        (TRIM_BYTES, 1.0, LONG_TRIM * 1.1, True, True, True),
        (TRIM_BYTES, MAX_TRIM_DELAY, LONG_TRIM * 1.1, False, True, True),
    ],
)
def test_a_trim_is_due_by_what_was_freed(
    freed: int, since: float, last_took: float, quiet: bool, settled: bool, due: bool
) -> None:
    assert is_due(freed=freed, since=since, last_took=last_took, quiet=quiet, settled=settled) is due


async def test_a_quiet_moment_is_trimmed_once_more_and_then_left_alone() -> None:
    """What a call leaves behind may be freed after it was counted; a start leaves something as well."""
    freed, trims = [0], [0]

    def trim() -> bool:
        trims[0] += 1
        return True

    trimming = Trimming(freed=lambda: freed[0], quiet=lambda: True, trim=trim, clock=lambda: 0.0)

    async def looks(number: int) -> int:
        for _ in range(number):
            await trimming.look()
        return trims[0]

    assert await looks(5) == 1
    freed[0] += 1
    assert await looks(1) == 2
    assert await looks(5) == 3


async def test_what_was_trimmed_is_not_counted_again() -> None:
    freed, now, trims = [TRIM_BYTES], [0.0], [0]

    def trim() -> bool:
        trims[0] += 1
        now[0] += 0.01
        return True

    trimming = Trimming(freed=lambda: freed[0], quiet=lambda: False, trim=trim, clock=lambda: now[0])
    for _ in range(3):
        await trimming.look()
    assert trims == [1]
    freed[0] += TRIM_BYTES
    await trimming.look()
    assert trims == [2] and trimming.figures() == {"times": 2, "longest_seconds": 0.01}


async def test_where_the_c_library_has_none_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    class Musl:
        """A C library without malloc_trim and mallopt."""

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Musl())
    assert allocator.find_trim() is None
    allocator.settle(AllocatorSettings())
    trimming = Trimming(freed=lambda: TRIM_BYTES, quiet=lambda: True)
    await trimming.look()
    assert trimming.times == 0


def resident(*lines: str) -> int:
    """Bytes resident at the end of a program in a process of its own."""
    [size] = apart.run("import psutil", *lines, "print(psutil.Process().memory_info().rss)")
    return int(size)


@pytest.mark.skipif(allocator.find_trim() is None, reason="this C library has no malloc_trim")
def test_a_trim_gives_back_what_lies_between_blocks_in_use() -> None:
    """glibc itself gives back no more than the end of its heap."""
    begin = (
        "from rolloutfleet_proxy.process.allocator import find_trim",
        "blocks = [b'x' * 20_000 for _ in range(10_000)]",
        "del blocks[1::2], blocks[: -1 : 2]",
    )
    kept = resident(*begin)
    assert resident(*begin, "assert find_trim()()") < kept - 50 * MIB


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="not Linux")
def test_large_blocks_are_mapped_by_themselves() -> None:
    """After a block of 30 MB glibc by itself takes ever larger ones from its heap, where they stay."""
    work = (
        "blocks = []",
        "block = b'x' * 30_000_000",
        "del block",
        "blocks = [b'x' * size for _ in range(100) for size in (1_000_000, 20_000)]",
        "del blocks[0::2]",
    )
    settle = "allocator.settle(AllocatorSettings(trim=False, arenas=0, mmap_threshold={}))"
    imports = (
        "from rolloutfleet.settings import AllocatorSettings",
        "from rolloutfleet_proxy.process import allocator",
    )
    threshold = AllocatorSettings().mmap_threshold
    sizes = {value: resident(*imports, settle.format(value), *work) for value in (0, threshold)}
    assert sizes[threshold] < sizes[0] - 50 * MIB, sizes
