"""Retention in the folder of dumps: what is too old or too much is removed, the oldest first.

Age is counted in seconds served since a sweep wrote a file, or first saw it, so a clock that is set removes nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rolloutfleet_proxy.lifecycle.folder import IMPORTING, Listed


@dataclass(frozen=True, slots=True)
class Kept:
    """A file in the folder of dumps."""

    file: str
    bytes: int
    since: float
    """Served seconds at the sweep that wrote it, or that first saw it."""


def removable(
    files: Sequence[Kept], *, now: float, age: float | None, most_bytes: int | None, this_sweep: float
) -> list[str]:
    """Which files go, oldest first. What this sweep wrote stays; for bytes' sake, so does what the newest one wrote."""
    newest = min(this_sweep, max((file.since for file in files), default=0.0))
    total = sum(file.bytes for file in files)
    going = []
    for file in sorted(files, key=lambda file: (file.since, file.file)):
        too_old = age is not None and now - file.since >= age and file.since < this_sweep
        too_much = most_bytes is not None and total > most_bytes and file.since < newest
        if too_old or too_much:
            going.append(file.file)
            total -= file.bytes
    return going


def kept(listed: Iterable[Listed], known: Mapping[str, float], *, ordinal: int, now: float) -> list[Kept]:
    """The files that a proxy may remove: its own ordinal's and those it wrote, but for those being imported. What is
    no file, a link or a folder of such a name, is nothing that a proxy wrote.

    `known` says since when it knows a file; an imported one is as old as the dump that it was.
    """
    own = f"s{ordinal}-"
    return [
        Kept(each.file, each.bytes, known.get(each.file, known.get(str(each.name), now)))
        for each in listed
        if each.regular and each.state != IMPORTING and (each.file.startswith(own) or str(each.name) in known)
    ]
