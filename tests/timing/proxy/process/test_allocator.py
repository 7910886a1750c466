"""What the C library keeps resident, and gives back."""

from pathlib import Path

import pytest
from tests import apart

from rolloutfleet.settings import AllocatorSettings
from rolloutfleet_proxy.process import allocator

MIB = 1 << 20


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
