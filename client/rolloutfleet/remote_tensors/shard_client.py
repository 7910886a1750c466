"""Calls about shards to the proxies of one fleet.

Safe to use in a process forked from one that used it: connections and threads are made anew there.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from weakref import WeakSet

import httpx

from rolloutfleet.errors import SHARD_UNKNOWN
from rolloutfleet.fleet.exceptions import OwnerUnavailable, Refused, UnknownOwner
from rolloutfleet.fleet.transport import client_options, read_answer, send, stream, unexpected_answer
from rolloutfleet.remote_tensors.answers import BrokenAnswer, file_of, tensors_of
from rolloutfleet.tensors import Form, RemoteTensor
from rolloutfleet.wire import TENSORS_MEDIA_TYPE, DeletedShards

Addresses = Sequence[str] | Callable[[], Sequence[str]]

CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""How long an answer may stand still."""
REQUESTS_AT_ONCE: Final = 8
KNOWN_SECONDS: Final = 10.0
"""How long the addresses that were found are taken for all there are."""


class ShardClient:
    """The fleet's proxies by address, as references name them, and the key to them."""

    def __init__(self, addresses: Addresses, admin_key: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._find = addresses
        self._key = admin_key
        self._clock = clock
        self._known: tuple[str, ...] = ()
        self._known_until = -math.inf
        self._start_anew()
        _ALL.add(self)

    def _start_anew(self) -> None:
        self._lock = threading.Lock()
        self._threads: ThreadPoolExecutor | None = None
        self._client: httpx.Client | None = None

    def close(self) -> None:
        """Close connections; calls under way end first."""
        with self._lock:
            threads, self._threads = self._threads, None
            client, self._client = self._client, None
        if threads is not None:
            threads.shutdown(wait=True)
        if client is not None:
            client.close()

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Runs the calls, a bounded number at once."""
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="remote-tensors")
            return self._threads

    def addresses(self) -> tuple[str, ...]:
        """All proxies, as they were some seconds ago, or when one last answered. Raises OwnerUnavailable."""
        if self._clock() < self._known_until:
            return self._known
        try:
            return self._find_anew()
        except OwnerUnavailable:
            if not self._known:
                raise
            # Nobody answers just now: it is these that are waited for.
            return self._known

    def _find_anew(self) -> tuple[str, ...]:
        try:
            found = self._find() if callable(self._find) else self._find
        except Exception as error:
            raise OwnerUnavailable(f"the fleet's proxies can't be found: {error}") from error
        self._known = tuple(address.rstrip("/") for address in found)
        self._known_until = self._clock() + KNOWN_SECONDS
        return self._known

    def check_known(self, owners: Iterable[str]) -> None:
        """Raises UnknownOwner for an address that is none of the fleet's: the key is not for everybody.

        Raises OwnerUnavailable where the fleet's addresses can't be found.
        """
        for owner in dict.fromkeys(owners):
            if owner not in self._known and owner not in self._find_anew():
                raise UnknownOwner(owner, self._known)

    def put(self, at: str, shard_id: str, form: Form, data: memoryview, **query: Any) -> RemoteTensor:
        """Raises Refused, Unreachable, FleetError."""
        size, pieces = file_of(form, data)
        answer = send(
            *(self._connections(), "PUT", f"{at}/shards/{shard_id}"),
            params={name: value for name, value in query.items() if value is not None},
            content=pieces,
            headers={"content-type": TENSORS_MEDIA_TYPE, "content-length": str(size)},
        )
        try:
            return RemoteTensor.from_json(answer.json())
        except ValueError as error:
            raise unexpected_answer(answer, str(error)) from None

    def fetch(
        self, owner: str, references: Sequence[RemoteTensor], landed: Callable[[RemoteTensor, bytearray], None]
    ) -> None:
        """Bring shards of one owner, `landed` with each as it comes; not with what the owner does not keep.

        Raises BrokenAnswer, Refused, ShardMismatch, Unreachable; what came till then has landed.
        """
        wanted = {reference.shard_id: reference for reference in references}
        asked = {"ids": list(wanted), "partial": True}
        try:
            with stream(self._connections(), "POST", f"{owner}/shards/batch", json=asked) as answer:
                for name, data in tensors_of(answer.iter_raw(), wanted):
                    landed(wanted[name], data)
        except Refused as error:
            if error.code != SHARD_UNKNOWN:
                raise
            # One was deleted while the answer began; the others are still there.
            raise BrokenAnswer(str(error)) from error

    def delete(self, owner: str, ids: Sequence[str]) -> DeletedShards:
        """Raises Refused, Unreachable, FleetError."""
        answer = send(self._connections(), "DELETE", f"{owner}/shards", json={"ids": list(ids)})
        return read_answer(answer, DeletedShards)

    def _connections(self) -> httpx.Client:
        with self._lock:
            if self._client is None:
                addresses = self._known or self.addresses()
                options = client_options(self._key, addresses, timeout=SILENCE_SECONDS, connect=CONNECT_SECONDS)
                self._client = httpx.Client(**options, limits=httpx.Limits(max_connections=2 * REQUESTS_AT_ONCE))
                self._client.headers["accept-encoding"] = "identity"
            return self._client


_ALL: "WeakSet[ShardClient]" = WeakSet()


def _start_all_anew() -> None:
    for client in _ALL:
        client._start_anew()


os.register_at_fork(after_in_child=_start_all_anew)
