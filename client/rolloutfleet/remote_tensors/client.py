"""`RemoteTensors`: what a trainer's rank does with tensors that proxies keep."""

import itertools
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import KW_ONLY, InitVar, dataclass
from functools import partial
from typing import Any, Final, Self, TypeVar

from rolloutfleet.fleet.exceptions import OwnerUnavailable, Refused, ShardsMissing, UnknownOwner, Unreachable
from rolloutfleet.fleet.retries import ALSO_SERVER_ERRORS, wait_before_retry
from rolloutfleet.grouping import grouped
from rolloutfleet.remote_tensors import clearing
from rolloutfleet.remote_tensors.arrays import Framework, array_of, form_and_bytes, import_torch, is_array
from rolloutfleet.remote_tensors.buffer import PROCESS, FetchBuffer, Flight
from rolloutfleet.remote_tensors.clearing import CONTROLLER, LOG, Cleared, DeleteReport, Role
from rolloutfleet.remote_tensors.nested import RemoteTensorDict, as_reference, leaves, mapped, tensor_dict, trimmed
from rolloutfleet.remote_tensors.shard_client import Addresses, ShardClient
from rolloutfleet.tensors import Form, RemoteTensor
from rolloutfleet.wire import DeletedShards

T = TypeVar("T")

SHARDS_A_REQUEST: Final = 256
BYTES_A_REQUEST: Final = 64 * 2**20
IDS_A_DELETE: Final = 10_000
DISK_FULL: Final = 507
GONE: Final = 410
MOST_UNDELETED: Final = 100_000
"""Shards that are remembered as not deleted. Of more than these, their time to live is the end."""


@dataclass(eq=False, repr=False)
class RemoteTensors:
    """Puts, fetches and gives back the shards of one fleet. Thread-safe; safe to use after a fork.

    `proxies` are the addresses of the fleet's proxies, as references name them, or what finds them, which follows
    scaling. The admin key is sent to these alone. What is fetched is a tensor of torch on the CPU, or a read-only numpy
    array, over memory that the process's fetch buffer shares: clone it before you change it.

    Raises ImportError where `framework` is torch and it is not installed, ValueError for another one.
    """

    proxies: InitVar[Addresses]
    admin_key: InitVar[str]
    _: KW_ONLY
    framework: Framework = "torch"
    fetch_seconds: float = 120.0
    """How long a call is tried again: long enough for a proxy that is restarted."""
    delete_seconds: float = 60.0
    buffer: FetchBuffer = PROCESS

    def __post_init__(self, proxies: Addresses, admin_key: str) -> None:
        if self.framework == "torch":
            import_torch()
        elif self.framework != "numpy":
            raise ValueError(f'framework is {self.framework!r}; it can be "torch" or "numpy"')
        self._shards = ShardClient(proxies, admin_key)
        self._turn = itertools.count(secrets.randbelow(2**16))
        self._undeleted: dict[RemoteTensor, None] = {}
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections. The fetch buffer, which is the process's, stays as it is."""
        self._shards.close()

    # Putting

    def put(
        self, array: Any, *, at: str | None = None, session_id: str | None = None, ttl: float | None = None
    ) -> RemoteTensor:
        """Keep a tensor with a proxy; on disk when this returns.

        It lives for `ttl` seconds, for a session, or, with neither, for a day; `at` is the proxy's address, else they
        take turns, and one that is down or full is passed over. A try whose answer is lost may leave a second copy with
        another proxy until its time is up.

        Raises OwnerUnavailable, Refused, UnknownOwner; ValueError for a tensor that can't be kept, TypeError for none.
        """
        form, data = form_and_bytes(array)
        return self._put(form, data, at=at, session_id=session_id, ttl=ttl)

    def remotize(
        self, value: Any, *, at: str | None = None, session_id: str | None = None, ttl: float | None = None
    ) -> Any:
        """The same structure of dict, list, tuple and TensorDict-like, with a reference for each tensor.

        Columns that no row attends to are cut first, in each dict with an `attention_mask` [rows, columns]. All or
        nothing: where one can't be put, those that were are deleted. Call it only where the result is used: what nobody
        names, nobody can give back. Raises as `put` does.
        """
        cut = trimmed(value)
        formed = [form_and_bytes(leaf) for leaf in leaves(cut) if is_array(leaf)]
        putting = [
            self._shards.threads.submit(self._put, form, data, at=at, session_id=session_id, ttl=ttl)
            for form, data in formed
        ]
        try:
            references = iter([each.result() for each in putting])
        except BaseException:
            self._take_back(putting)
            raise
        return mapped(cut, lambda leaf: next(references) if is_array(leaf) else leaf, tensor_dict=RemoteTensorDict)

    def _put(
        self, form: Form, data: memoryview, *, at: str | None, session_id: str | None, ttl: float | None
    ) -> RemoteTensor:
        name = secrets.token_hex(16)
        addresses = self._addresses(at)

        def attempt() -> RemoteTensor:
            # The same tensor under the same id is one shard: an answer that was lost is asked for where it was.
            try:
                return self._shards.put(addresses[0], name, form, data, session_id=session_id, ttl=ttl)
            except Unreachable as error:
                if not error.sent:
                    addresses.rotate(-1)
                raise
            except Refused as error:
                addresses.rotate(-1)
                if error.status == DISK_FULL:
                    raise Unreachable(str(error)) from error
                raise

        return retried(attempt, owner=at or "every proxy", seconds=self.fetch_seconds)

    def _addresses(self, at: str | None) -> deque[str]:
        """The proxies that take turns, the one whose turn it is first."""
        if at is not None:
            self._shards.check_known([at])
            return deque([at])
        addresses = deque(self._shards.addresses())
        if not addresses:
            raise UnknownOwner("", ())
        addresses.rotate(-next(self._turn))
        return addresses

    def _take_back(self, putting: Sequence["Future[RemoteTensor]"]) -> None:
        for each in putting:
            each.cancel()
        put = [each.result() for each in putting if not each.cancelled() and each.exception() is None]
        self.delete(put)

    # Fetching

    def fetch(self, references: Iterable[RemoteTensor]) -> list[Any]:
        """The tensors, in the order of the references.

        Those in the fetch buffer come from there, those that another thread is fetching are waited for, and the rest is
        asked of its owners: at most 256 shards or 64 MiB a request, eight requests at once.

        Raises ShardsMissing, ShardMismatch, OwnerUnavailable, Refused, UnknownOwner.
        """
        asked = list(references)
        self._shards.check_known(reference.owner for reference in asked)
        claim = self.buffer.claim(asked)
        for request in requests_for(claim.mine):
            self._start(request)
        come = [waiting.result() for waiting in claim.waiting]
        forms = [Form(reference.dtype, reference.shape) for reference in asked]
        return [array_of(form, data, self.framework) for form, data in zip(forms, come, strict=True)]

    def localize(self, value: Any) -> Any:
        """The same structure with a tensor for each reference, those in JSON's form included. All are fetched together.

        Raises as `fetch` does.
        """
        references = [leaf for leaf in leaves(value) if isinstance(leaf, RemoteTensor)]
        tensors = iter(self.fetch(references))

        def change(leaf: Any) -> Any:
            return leaf if as_reference(leaf) is None else next(tensors)

        return mapped(value, change, tensor_dict=tensor_dict)

    def _start(self, request: Sequence[Flight]) -> None:
        try:
            self._shards.threads.submit(self._bring, request)
        except BaseException as error:
            self._fail(request, error)
            raise

    def _bring(self, request: Sequence[Flight]) -> None:
        """Land every flight of one owner, or fail it."""
        owner = request[0].reference.owner
        left = {flight.reference: flight for flight in request}

        def landed(reference: RemoteTensor, data: bytearray) -> None:
            self.buffer.land(left.pop(reference), data)

        def attempt() -> None:
            # An answer may break off behind its last tensor.
            if left:
                self._shards.fetch(owner, list(left), landed)

        try:
            retried(attempt, owner=owner, seconds=self.fetch_seconds)
            if left:
                raise ShardsMissing(owner, [reference.shard_id for reference in left])
        except BaseException as error:
            self._fail(left.values(), error)

    def _fail(self, flights: Iterable[Flight], error: BaseException) -> None:
        for flight in flights:
            self.buffer.fail(flight, error)

    # Giving back

    @property
    def undeleted(self) -> tuple[RemoteTensor, ...]:
        """Shards whose owner has not acknowledged their end; `clear_batches` and `delete` ask for them again."""
        with self._lock:
            return tuple(self._undeleted)

    def delete(self, references: Iterable[RemoteTensor]) -> DeleteReport:
        """Free shards at their owners, with those that an earlier call left undeleted. No owner's failure is raised.

        Each owner is asked until it acknowledges, for `delete_seconds` at most. What it did not acknowledge is in the
        report, in the log and in `undeleted`, and is asked for again by the next call. Buffers are left as they are.
        """
        with self._lock:
            late = {reference.owner for reference in self._undeleted}
            wanted = list(dict.fromkeys([*self._undeleted, *references]))
        parts = list(_by_owner(wanted))
        # An owner that did not answer the last time is asked once, so that one that is gone holds up no step.
        now = time.monotonic()
        until = {owner: now if owner in late else now + self.delete_seconds for owner, _ in parts}
        threads = self._shards.threads
        asked = [(owner, part, threads.submit(self._delete, owner, part, until[owner])) for owner, part in parts]
        report = _reported(asked)
        self._remember(wanted, report.undeleted)
        for owner, reason in report.failures.items():
            LOG.warning("shards were not deleted at %s, and will be retried: %s", owner, reason)
        return report

    def clear_batches(self, *batches: Any, roles: Mapping[str, Role] | None = None) -> Cleared:
        """Give back all shards that these structures name: at their owners, in this process, in all ranks of `roles`.

        For a controller that reaches its ranks by calls of its own; ranks of torch.distributed call
        `rolloutfleet.torch.clear_batches` together. All roles are drained, whatever one of them answers. Nothing passed
        clears nothing. Failures are in the answer and in the log, and so is what stays in any buffer afterwards.
        """
        named, told = references_in(batches), roles or {}
        if not named and not self.undeleted:
            return Cleared()
        deleted = self.delete(named)
        ids = list(dict.fromkeys(reference.shard_id for reference in named))
        self.buffer.clear(ids)
        failed = clearing.drain(told, ids)
        return Cleared(tuple(ids), deleted, failed, clearing.staying(self.fetch_buffer_stats(told)))

    def clear_fetch_buffer(self, ids: Iterable[str] | None = None) -> int:
        """Forget these shards in this process alone; nothing passed forgets nothing. How many were kept."""
        return 0 if ids is None else self.buffer.clear(ids)

    def buffer_stats(self) -> dict[str, int]:
        """`{"entries", "bytes"}` of this process."""
        return self.buffer.stats()

    def fetch_buffer_stats(self, roles: Mapping[str, Role] | None = None) -> dict[str, Mapping[str, int]]:
        """`{"entries", "bytes"}` of this process and of all ranks of `roles`; who fails is logged and left out."""
        return {CONTROLLER: self.buffer_stats(), **clearing.buffers_of(roles or {})}

    def _delete(self, owner: str, references: Sequence[RemoteTensor], until: float) -> DeletedShards:
        self._shards.check_known([owner])
        ids = [reference.shard_id for reference in references]
        seconds = max(0.0, until - time.monotonic())
        try:
            return retried(partial(self._shards.delete, owner, ids), owner=owner, seconds=seconds)
        except Refused as error:
            if error.status == GONE:
                # With the store that kept them.
                return DeletedShards(deleted=0, bytes=0)
            raise

    def _remember(self, asked: Iterable[RemoteTensor], undeleted: Sequence[RemoteTensor]) -> None:
        with self._lock:
            for reference in asked:
                self._undeleted.pop(reference, None)
            self._undeleted |= dict.fromkeys(undeleted)
            while len(self._undeleted) > MOST_UNDELETED:
                del self._undeleted[next(iter(self._undeleted))]


def retried(attempt: Callable[[], T], *, owner: str, seconds: float) -> T:
    """What `attempt` returns, tried again for so many seconds where it failed in a way that may pass.

    Raises OwnerUnavailable when the time is up, and what `attempt` raises for good.
    """
    until = time.monotonic() + seconds
    for tries in itertools.count():
        try:
            return attempt()
        except (Refused, Unreachable) as error:
            wait = wait_before_retry(error, attempt=tries, chance=random.random(), statuses=ALSO_SERVER_ERRORS)
            if wait is None:
                raise
            if time.monotonic() + wait > until:
                why = error.why if isinstance(error, Unreachable) else str(error)
                raise OwnerUnavailable(f"{owner} gave no usable answer for {seconds:.0f} s: {why}") from error
        time.sleep(wait)
    raise AssertionError


def references_in(value: Any) -> list[RemoteTensor]:
    """Every reference in a nested structure, each once."""
    return list(dict.fromkeys(leaf for leaf in leaves(value) if isinstance(leaf, RemoteTensor)))


def requests_for(flights: Iterable[Flight]) -> list[list[Flight]]:
    """The flights as requests, each to one owner and bounded; a larger shard goes alone."""
    made: list[list[Flight]] = []
    open_at: dict[str, tuple[list[Flight], int]] = {}
    for flight in flights:
        reference = flight.reference
        nbytes = Form(reference.dtype, reference.shape).nbytes
        request, size = open_at.get(reference.owner, ([], 0))
        if not request or len(request) == SHARDS_A_REQUEST or size + nbytes > BYTES_A_REQUEST:
            request, size = [], 0
            made.append(request)
        request.append(flight)
        open_at[reference.owner] = request, size + nbytes
    return made


def _by_owner(references: Iterable[RemoteTensor]) -> Iterator[tuple[str, list[RemoteTensor]]]:
    for owner, theirs in grouped(references, lambda reference: reference.owner).items():
        for start in range(0, len(theirs), IDS_A_DELETE):
            yield owner, theirs[start : start + IDS_A_DELETE]


def _reported(asked: Iterable[tuple[str, Sequence[RemoteTensor], "Future[DeletedShards]"]]) -> DeleteReport:
    shards = nbytes = 0
    undeleted: list[RemoteTensor] = []
    failures: dict[str, str] = {}
    for owner, part, deleting in asked:
        try:
            answer = deleting.result()
            shards, nbytes = shards + answer.deleted, nbytes + answer.bytes
        except Exception as error:
            undeleted.extend(part)
            failures[owner] = str(error) or type(error).__name__
    return DeleteReport(shards, nbytes, tuple(undeleted), failures)
