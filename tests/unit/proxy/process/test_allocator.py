"""When memory is given back: decided by what was freed, absent where the C library has no such thing."""

import ctypes

import pytest

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
