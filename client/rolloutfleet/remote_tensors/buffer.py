"""What this process has fetched and may be asked for again, bounded in bytes; and what is being fetched now.

A shard that is being fetched is a flight: who asks for it meanwhile waits for the same answer. Clearing takes a shard
out of both: its flight still answers those who wait for it, and is not kept.

One buffer serves the whole process, so that `clear_fetch_buffer` and the like are plain functions of plain values,
which any transport can call by name. A forked process starts with an empty one.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from rolloutfleet.tensors import RemoteTensor

DEFAULT_LIMIT: Final = 2**30
ENTRY_OVERHEAD: Final = 512
"""Bytes that an entry counts for besides its tensor's, so that empty tensors are bounded as well."""


@dataclass(eq=False, slots=True)
class Flight:
    """A shard that one fetch brings, for all who ask meanwhile."""

    reference: RemoteTensor
    landed: "Future[bytearray]" = field(default_factory=Future)


@dataclass(frozen=True, slots=True)
class Claim:
    """What a fetch gets: where the bytes of each shard will come from, and which of them it must bring itself."""

    waiting: "Sequence[Future[bytearray]]"
    """One for each reference asked for, in their order."""
    mine: Sequence[Flight]


class FetchBuffer:
    """Bytes of fetched shards by id; those not used for longest go first. Thread-safe.

    A tensor larger than the limit is handed out and not kept.
    """

    def __init__(self, *, limit: int = DEFAULT_LIMIT) -> None:
        self._limit = limit
        self._start_empty()

    def _start_empty(self) -> None:
        self._lock = threading.Lock()
        self._entries: OrderedDict[str, Flight] = OrderedDict()
        self._flights: dict[str, Flight] = {}
        self._nbytes = 0

    def set_limit(self, nbytes: int) -> None:
        """Keep at most so many bytes from now on; 0 keeps nothing. Raises ValueError below 0."""
        if nbytes < 0:
            raise ValueError(f"the fetch buffer's limit is {nbytes} bytes; it can't be below 0")
        with self._lock:
            self._limit = nbytes
            self._shrink()

    def claim(self, references: Iterable[RemoteTensor]) -> Claim:
        """Join what is kept or on its way; what is neither, the caller must bring and `land`, or `fail`."""
        asked = list(references)
        mine: dict[RemoteTensor, Flight] = {}
        waiting = []
        with self._lock:
            for reference in asked:
                flight = self._known(reference) or mine.get(reference)
                if flight is None:
                    flight = mine[reference] = Flight(reference)
                    # Of two owners' shards under one id, the second is fetched for its caller alone.
                    self._flights.setdefault(reference.shard_id, flight)
                waiting.append(flight.landed)
        return Claim(waiting, list(mine.values()))

    def land(self, flight: Flight, data: bytearray) -> None:
        """The bytes of a shard have come."""
        name = flight.reference.shard_id
        with self._lock:
            # Cleared meanwhile, it is no longer among the flights.
            if self._flights.get(name) is flight:
                del self._flights[name]
                self._drop(name)
                self._entries[name] = flight
                self._nbytes += len(data)
            flight.landed.set_result(data)
            self._shrink()

    def fail(self, flight: Flight, error: BaseException) -> None:
        """They will not come. Without effect where they have."""
        name = flight.reference.shard_id
        with self._lock:
            if self._flights.get(name) is flight:
                del self._flights[name]
            if not flight.landed.done():
                flight.landed.set_exception(error)

    def clear(self, ids: Iterable[str]) -> int:
        """Forget these shards, also those on their way. How many were kept. Raises TypeError for what is not an id."""
        names = unique_ids(ids)
        with self._lock:
            for name in names:
                self._flights.pop(name, None)
            return sum(self._drop(name) for name in names)

    def flush(self) -> int:
        """Forget everything. How many were kept."""
        with self._lock:
            self._flights.clear()
            dropped = len(self._entries)
            self._entries.clear()
            self._nbytes = 0
            return dropped

    def stats(self) -> dict[str, int]:
        """`{"entries", "bytes"}` of what is kept."""
        with self._lock:
            return {"entries": len(self._entries), "bytes": self._nbytes}

    def _known(self, reference: RemoteTensor) -> Flight | None:
        name = reference.shard_id
        flight = self._entries.get(name)
        if flight is not None and flight.reference == reference:
            self._entries.move_to_end(name)
            return flight
        flight = self._flights.get(name)
        return flight if flight is not None and flight.reference == reference else None

    def _drop(self, name: str) -> bool:
        flight = self._entries.pop(name, None)
        if flight is None:
            return False
        self._nbytes -= len(flight.landed.result())
        return True

    def _shrink(self) -> None:
        while self._entries and self._nbytes + ENTRY_OVERHEAD * len(self._entries) > self._limit:
            self._drop(next(iter(self._entries)))


def unique_ids(ids: Iterable[str]) -> list[str]:
    """Each id once. Raises TypeError for one text, and for what is not an id."""
    if isinstance(ids, str):
        raise TypeError(f"ids is a list of shard ids, and not one text ({ids[:40]!r})")
    names = list(dict.fromkeys(ids))
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"a shard id is text, and not {type(name).__name__}")
    return names


PROCESS: Final = FetchBuffer()
"""The buffer of this process."""

os.register_at_fork(after_in_child=PROCESS._start_empty)


def clear_fetch_buffer(ids: Iterable[str] | None = None) -> int:
    """Forget these shards in this process, also those that are being fetched. How many were kept.

    Nothing passed clears nothing: for everything there is `flush_fetch_buffer`. Raises TypeError for what is not an id.
    """
    return 0 if ids is None else PROCESS.clear(ids)


def flush_fetch_buffer() -> int:
    """Forget all shards in this process. How many were kept."""
    return PROCESS.flush()


def fetch_buffer_stats() -> dict[str, int]:
    """`{"entries", "bytes"}` that this process keeps."""
    return PROCESS.stats()


def limit_fetch_buffer(nbytes: int) -> None:
    """Keep at most so many bytes in this process (1 GiB unless said); 0 keeps nothing. Raises ValueError below 0."""
    PROCESS.set_limit(nbytes)
