"""Calls about shards to the proxies of one fleet.

Safe to use in a process forked from one that used it: connections and threads are made anew there.
"""

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit
from weakref import WeakSet

import httpx

from rolloutfleet.errors import SHARD_UNKNOWN
from rolloutfleet.remote_tensors.answers import file_of, tensors_of
from rolloutfleet.remote_tensors.failures import OwnerUnavailable, Refused, UnknownOwner
from rolloutfleet.remote_tensors.patience import Passing, checked
from rolloutfleet.tensors import Form, RemoteTensor
from rolloutfleet.wire import TENSORS_MEDIA_TYPE

Addresses = Sequence[str] | Callable[[], Sequence[str]]

LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 60.0
"""How long an answer may stand still."""
REQUESTS_AT_ONCE: Final = 8
KNOWN_SECONDS: Final = 10.0
"""How long the addresses that were found are taken for all there are."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """What an owner answered: how many shards it still had, and their bytes."""

    shards: int
    nbytes: int


class Proxies:
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
        self._process: _Process | None = None

    def close(self) -> None:
        """Close connections; calls under way end first."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.close()

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Runs the calls, a bounded number at once."""
        return self._here().threads

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
        """Raises Passing, Refused, httpx.TransportError."""
        size, pieces = file_of(form, data)
        answer = self._here().client.put(
            f"{at}/shards/{shard_id}",
            params={name: value for name, value in query.items() if value is not None},
            content=pieces,
            headers={"content-type": TENSORS_MEDIA_TYPE, "content-length": str(size)},
        )
        return RemoteTensor.from_json(checked(answer).json())

    def fetch(
        self, owner: str, references: Sequence[RemoteTensor], landed: Callable[[RemoteTensor, bytearray], None]
    ) -> None:
        """Bring shards of one owner, `landed` with each as it comes; not with what the owner does not keep.

        Raises Passing, BrokenAnswer, Refused, ShardMismatch, httpx.TransportError; what came till then has landed.
        """
        wanted = {reference.shard_id: reference for reference in references}
        asked = {"ids": list(wanted), "partial": True}
        with self._here().client.stream("POST", f"{owner}/shards/batch", json=asked) as answer:
            if not answer.is_success:
                answer.read()
            try:
                checked(answer)
            except Refused as error:
                if error.code != SHARD_UNKNOWN:
                    raise
                # One was deleted while the answer began; the others are still there.
                raise Passing(str(error), retry_after=None) from error
            for name, data in tensors_of(answer.iter_raw(), wanted):
                landed(wanted[name], data)

    def delete(self, owner: str, ids: Sequence[str]) -> Deleted:
        """Raises Passing, Refused, httpx.TransportError."""
        answer = checked(self._here().client.request("DELETE", f"{owner}/shards", json={"ids": list(ids)})).json()
        return Deleted(int(answer["deleted"]), int(answer["bytes"]))

    def _here(self) -> "_Process":
        with self._lock:
            if self._process is None:
                addresses = self._known or self.addresses()
                local = all(urlsplit(address).hostname in LOOPBACK for address in addresses)
                self._process = _Process(self._key, trust_env=not local)
            return self._process


class _Process:
    """Connections and threads of one process."""

    def __init__(self, key: str, *, trust_env: bool) -> None:
        self.threads = ThreadPoolExecutor(max_workers=REQUESTS_AT_ONCE, thread_name_prefix="remote-tensors")
        self.client = httpx.Client(
            headers={"authorization": f"Bearer {key}", "accept-encoding": "identity"},
            timeout=httpx.Timeout(SILENCE_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=2 * REQUESTS_AT_ONCE),
            trust_env=trust_env,
        )

    def close(self) -> None:
        self.threads.shutdown(wait=True)
        self.client.close()


_ALL: "WeakSet[Proxies]" = WeakSet()


def _start_all_anew() -> None:
    for proxies in _ALL:
        proxies._start_anew()


os.register_at_fork(after_in_child=_start_all_anew)
