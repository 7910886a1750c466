"""Which process has a store locked, by lines of /proc/locks."""

import pytest

from rolloutfleet_proxy.store.lock_holder import holder

LINE = "35: POSIX  ADVISORY  {kind} {pid} fe:00:{inode} {first} {last}"


def line(*, kind: str = "WRITE", pid: int = 4711, inode: int = 77, first: int = 120, last: str = "120") -> str:
    return LINE.format(kind=kind, pid=pid, inode=inode, first=first, last=last)


@pytest.mark.parametrize("held", [line(), line(first=0, last="EOF"), line(first=120, last="127")])
def test_the_process_that_holds_the_write_lock_is_named(held: str) -> None:
    assert holder(["1: FLOCK  ADVISORY  WRITE 9 fe:00:77 0 EOF", held], 77) == 4711


@pytest.mark.parametrize(
    "held",
    [
        line(inode=177),
        line(kind="READ"),
        line(first=121, last="127"),
        line(first=0, last="119"),
        line(pid=-1),
        "36: -> POSIX  ADVISORY  WRITE 4711 fe:00:77 120 120",
        "37: OFDLCK ADVISORY  WRITE 4711 fe:00:77 120 120",
        "",
    ],
)
def test_no_other_lock_names_anybody(held: str) -> None:
    assert holder([held], 77) is None
