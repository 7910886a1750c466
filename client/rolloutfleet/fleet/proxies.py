"""The proxies of a fleet: which there are, who answers, and calls to them.

`GET /proxies` is asked again every few seconds and whenever somebody does not answer, so scaling is followed. A call
for anything with one owner goes to the owner, whose ordinal the name begins with (`s3-…`); any other proxy passes it
on.
"""

import asyncio
import inspect
import logging
import random
import re
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, TypedDict, TypeVar, Unpack

import httpx
from pydantic import BaseModel

from rolloutfleet.fleet.exceptions import FleetClosed, FleetError, NotEverywhere, Refused, Unreachable
from rolloutfleet.fleet.outbox import Outbox
from rolloutfleet.fleet.retries import draws_new_key, may_be_done, wait_before_new_key, wait_before_retry
from rolloutfleet.fleet.transport import (
    CONNECT_TIMEOUT,
    Answer,
    checked,
    client_options,
    raising_unreachable,
    read_answer,
)
from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.grouping import grouped
from rolloutfleet.wire import (
    IDEMPOTENCY_KEY_HEADER,
    JSON_MEDIA_TYPE,
    TENSORS_MEDIA_TYPE,
    Paged,
    Proxy,
    ProxyList,
    TurnList,
)

log = logging.getLogger("rolloutfleet.fleet")

ANSWER_TIMEOUT: Final = 60.0
"""Seconds for one answer, where the call says nothing else."""
AT_ONCE: Final = 32
FLEET: Final = {"scope": "fleet"}
"""The query of a call that covers all proxies."""
PROBE_TIMEOUT: Final = 3.0
REFRESH_INTERVAL: Final = 5.0
AT_ONE_PROXY: Final = 64
"""Calls at once to one proxy. More wait for these; calls to other proxies don't."""
_CONNECTIONS: Final = httpx.Limits(max_connections=None, max_keepalive_connections=32, keepalive_expiry=4.0)
"""An idle connection is given up before the proxy does it (5 s)."""
_OWNER: Final = re.compile(r"^[sglt](0|[1-9]\d{0,5})-")

Page = TypeVar("Page", bound=Paged)
Listed = TypeVar("Listed", bound=Paged | TurnList)


class ProxyRequest(TypedDict, total=False):
    """What is asked of a proxy, beside method and path."""

    body: BaseModel | bytes | None
    """Bytes are safetensors."""
    query: Mapping[str, str | int] | None
    key: str | None
    """The Idempotency-Key."""
    accept: str
    timeout: float


class FleetCall(ProxyRequest, total=False):
    """What is asked of a fleet."""

    owner: int | None
    new_keys: bool
    patience: float | None


@dataclass(frozen=True, slots=True)
class Outage:
    """A proxy that does not answer."""

    since: float
    """By the clock of `Proxies`."""
    why: str


def owner_of(name: str) -> int | None:
    """The ordinal that a session's, group's, lease's or shard's name says; None where it says none."""
    found = _OWNER.match(name)
    return int(found[1]) if found else None


def new_key() -> str:
    """An Idempotency-Key."""
    return uuid.uuid4().hex


class Proxies:
    """Calls to a fleet. One event loop's; closed by `close`."""

    def __init__(self, where: Whereabouts, *, patience: float) -> None:
        self.clock: Callable[[], float] = lambda: asyncio.get_running_loop().time()
        self.known: dict[int, Proxy] = {}
        """Every proxy as last seen, by ordinal; empty until somebody has answered."""
        self.outages: dict[int, Outage] = {}
        """Those that did not answer when they were last asked."""
        self.outbox = Outbox()
        self._where = where
        self.patience = patience
        self._rng = random.Random()
        self._refreshed_at = float("-inf")
        self._refreshing = asyncio.Lock()
        self._permits = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(AT_ONE_PROXY))
        """By address."""
        self._silent: dict[str, float] = {}
        """When an address last did not answer a call, by `clock`."""
        self._probes: dict[int, asyncio.Task[str | None]] = {}
        """By ordinal: probes under way of whether a proxy answers."""
        self._loop: asyncio.AbstractEventLoop | None = None
        """That of the first call: connections and locks are bound to it."""
        self._client = httpx.AsyncClient(
            **client_options(where.admin_key, where.urls, timeout=ANSWER_TIMEOUT), limits=_CONNECTIONS
        )

    async def close(self) -> None:
        for probe in self._probes.values():
            probe.cancel()
        await self._client.aclose()

    def check_open(self) -> None:
        """Every call begins with this. Raises FleetClosed after `close`, and in a second event loop."""
        if self._client.is_closed:
            raise FleetClosed("this fleet object has been closed")
        running = asyncio.get_running_loop()
        self._loop = self._loop or running
        if running is not self._loop:
            raise FleetClosed(
                "this fleet object belongs to another event loop: make one in each, of its whereabouts "
                "(AsyncFleet(fleet.whereabouts)), or use Fleet, which any thread may call"
            )

    @property
    def urls(self) -> list[str]:
        """All addresses, those that answered when last asked first."""
        own = sorted(self.known.values(), key=lambda each: (each.ordinal in self.outages, each.ordinal))
        return list(dict.fromkeys([*(each.url for each in own), *self._where.urls]))

    async def ordinals(self) -> list[int]:
        """Those that there are now. Raises Unreachable where nobody has ever answered."""
        await self.refresh()
        return sorted(self.known)

    async def refresh(self, *, now: bool = False) -> None:
        """See which proxies there are, if that is due. Raises Unreachable or Refused where nobody has ever answered."""
        self.check_open()
        async with self._refreshing:
            if not now and self.clock() - self._refreshed_at < REFRESH_INTERVAL and self.known:
                return
            self._where = self._where.again()
            problems: list[FleetError] = []
            for url in self.urls:
                try:
                    answer = await self._request("GET", url, "/proxies", timeout=PROBE_TIMEOUT)
                except FleetError as error:
                    problems.append(error)
                    continue
                self._take(read_answer(answer, ProxyList))
                return
            if not self.known:
                refused = next((problem for problem in problems if isinstance(problem, Refused)), None)
                raise refused or self._silent_fleet(problems[-1])

    async def call(self, method: str, path: str, answer: type[Answer], **call: Unpack[FleetCall]) -> Answer:
        """The answer of the owner, or through any other proxy; asked again until `patience` is over.

        So the call must be one that may be made twice. With `new_keys` another key may take the place of `key` as long
        as nothing can have been done under that. Raises Refused, or Unreachable.
        """
        return read_answer(await self.send(method, path, **call), answer)

    async def send(
        self,
        method: str,
        path: str,
        *,
        owner: int | None = None,
        new_keys: bool = False,
        patience: float | None = None,
        **request: Unpack[ProxyRequest],
    ) -> httpx.Response:
        """As `call`; the answer as it is."""
        until = self.clock() + (self.patience if patience is None else patience)
        attempt = 0
        while True:
            answer, done = await self._round(method, path, owner=owner, **request)
            if isinstance(answer, httpx.Response):
                return answer
            wait = wait_before_retry(answer, attempt=attempt, chance=self._rng.random())
            new_keys = new_keys and not done
            if wait is not None and new_keys and draws_new_key(answer):
                request["key"], wait = new_key(), wait_before_new_key(wait, keys=attempt + 1)
            if wait is None or self.clock() + wait > until:
                raise answer
            await asyncio.sleep(wait)
            attempt += 1

    async def pages(self, path: str, page: type[Page], query: Mapping[str, str | int]) -> AsyncIterator[Page]:
        """A list of all proxies, so much of each at a time. Raises NotEverywhere at the end, where some did not answer.

        Raises Refused, or Unreachable.
        """
        failed: dict[int, str] = {}
        async for answer in paged(lambda asked: self.call("GET", path, page, query=asked), {**query, **FLEET}):
            failed.update({each.ordinal: each.error.message for each in answer.failed})
            yield answer
        if failed:
            raise NotEverywhere(f"GET {path}", failed)

    @asynccontextmanager
    async def stream(
        self, ordinal: int, path: str, *, headers: Mapping[str, str] | None = None, silence: float = ANSWER_TIMEOUT
    ) -> AsyncIterator[httpx.Response]:
        """This proxy's answer as it comes, with at most so many seconds between two of its pieces.

        Raises Refused, Unreachable; also where the answer breaks off, and for an OSError of the block.
        """
        url = f"{self._url_of(ordinal)}{path}"
        timeout = httpx.Timeout(silence, connect=CONNECT_TIMEOUT)
        with raising_unreachable("GET", url):
            async with self._client.stream("GET", url, headers=headers, timeout=timeout) as answer:
                if not answer.is_success:
                    await answer.aread()
                yield checked(answer)

    async def pieces(self, ordinal: int, path: str) -> AsyncGenerator[bytes, None]:
        """The bytes of this proxy's answer as they come. Raises Refused, Unreachable."""
        async with self.stream(ordinal, path) as answer:
            async for piece in answer.aiter_raw():
                yield piece

    async def ask(self, ordinal: int, method: str, path: str, **request: Unpack[ProxyRequest]) -> httpx.Response:
        """The answer of this proxy, asked once. Raises Refused, or Unreachable; then it is in `outages`."""
        return await self._noted(ordinal, self._once(method, self._url_of(ordinal), path, **request))

    async def check(self, ordinal: int) -> None:
        """See whether it answers, before all calls that wait for a place. Raises as `ask`."""
        await self._noted(ordinal, self._request("GET", self._url_of(ordinal), "/health", timeout=PROBE_TIMEOUT))

    def _url_of(self, ordinal: int) -> str:
        self.check_open()
        if ordinal not in self.known:
            raise Unreachable(f"proxy {ordinal} is not one of the fleet's now")
        return self.known[ordinal].url

    async def _noted(self, ordinal: int, call: Awaitable[httpx.Response], *, passed_on: bool = False) -> httpx.Response:
        """The answer to a call; that there was one is noted. One that is passed on to its owner waits for that."""
        try:
            answer = await call
        except Unreachable as error:
            if not (passed_on and error.sent):
                self._note_outage(ordinal, str(error))
            raise
        except Refused:
            self._answered(ordinal)
            raise
        self._answered(ordinal)
        return answer

    async def _round(
        self, method: str, path: str, *, owner: int | None, **request: Unpack[ProxyRequest]
    ) -> tuple[httpx.Response | FleetError, bool]:
        """(the answer, or what went wrong; whether any proxy may have done it).

        The next proxy is asked where one can't be connected to; what it answers counts.
        """
        failure: FleetError = Unreachable("no proxy is known")
        done = False
        for url in await self._addresses(owner):
            ordinal = next((each.ordinal for each in self.known.values() if each.url == url), None)
            if owner is None and ordinal is not None:
                outage = await self._outage_of(ordinal)
                if outage is not None:
                    failure = Unreachable(f"proxy {ordinal}: {outage}")
                    continue
            passed_on = owner not in (None, ordinal)
            call = self._once(method, url, path, passed_on=passed_on, **request)
            try:
                return await (call if ordinal is None else self._noted(ordinal, call, passed_on=passed_on)), True
            except (Refused, Unreachable) as error:
                failure, done = error, done or may_be_done(error)
                if isinstance(error, Refused):
                    break
        return self._silent_fleet(failure) if isinstance(failure, Unreachable) and not self.known else failure, done

    def _silent_fleet(self, failure: FleetError) -> Unreachable:
        """None of the addresses that were given has ever answered."""
        why, sent = (failure.why, failure.sent) if isinstance(failure, Unreachable) else (str(failure), True)
        return Unreachable(f"no proxy answers at {', '.join(self._where.urls)}: {why}", why=why, sent=sent)

    async def _outage_of(self, ordinal: int) -> str | None:
        """Why it does not answer; None where it does. One that hangs would hold up what any other could answer.

        Callers share a probe that is under way.
        """
        probe = self._probes.get(ordinal)
        if probe is None:
            probe = self._probes[ordinal] = asyncio.create_task(self._probe(ordinal))
            probe.add_done_callback(lambda _: self._probes.pop(ordinal, None))
        return await asyncio.shield(probe)

    async def _probe(self, ordinal: int) -> str | None:
        try:
            await self.check(ordinal)
        except Unreachable as error:
            return str(error)
        except Refused:
            pass
        return None

    async def _addresses(self, owner: int | None) -> list[str]:
        try:
            await self.refresh(now=owner in self.outages)
        except Unreachable:
            return list(self._where.urls)
        first = self.known.get(owner) if owner is not None else None
        if first is not None:
            return list(dict.fromkeys([first.url, *self.urls]))
        well = [each.url for each in self.known.values() if each.ordinal not in self.outages]
        self._rng.shuffle(well)
        return list(dict.fromkeys([*well, *self.urls]))

    async def _once(
        self, method: str, url: str, path: str, *, passed_on: bool = False, **request: Unpack[ProxyRequest]
    ) -> httpx.Response:
        """As `_request`, when there is a place. A wait for that is not the proxy's fault, unless it falls silent."""
        began = self.clock()
        async with self._permits[url]:
            if self._silent.get(url, began) > began:
                raise Unreachable(f"{method} {url}{path}: it did not answer others meanwhile")
            try:
                return await self._request(method, url, path, **request)
            except Unreachable as error:
                if not (passed_on and error.sent):
                    self._silent[url] = self.clock()
                raise

    async def _request(
        self,
        method: str,
        url: str,
        path: str,
        *,
        body: BaseModel | bytes | None = None,
        query: Mapping[str, str | int] | None = None,
        key: str | None = None,
        accept: str = JSON_MEDIA_TYPE,
        timeout: float = ANSWER_TIMEOUT,
    ) -> httpx.Response:
        headers = {"accept": accept} | ({IDEMPOTENCY_KEY_HEADER: key} if key is not None else {})
        content = None
        if isinstance(body, bytes):
            content = body
            headers["content-type"] = TENSORS_MEDIA_TYPE
        elif body is not None:
            content = body.model_dump_json(by_alias=True, exclude_none=True).encode()
            headers["content-type"] = JSON_MEDIA_TYPE
        with raising_unreachable(method, f"{url}{path}"):
            answer = await self._client.request(
                method,
                f"{url}{path}",
                params=query,
                content=content,
                headers=headers,
                timeout=httpx.Timeout(timeout, connect=CONNECT_TIMEOUT),
            )
        return checked(answer)

    def _take(self, answer: ProxyList) -> None:
        self._refreshed_at = self.clock()
        found = {each.ordinal: each for each in answer.proxies}
        if self.known and found.keys() != self.known.keys():
            log.info("the fleet has proxies %s now", sorted(found))
        self.known = found
        self.outages = {ordinal: outage for ordinal, outage in self.outages.items() if ordinal in found}

    def _note_outage(self, ordinal: int, why: str) -> None:
        if ordinal not in self.outages:
            log.warning("proxy %d does not answer: %s", ordinal, why)
            self.outages[ordinal] = Outage(self.clock(), why)

    def _answered(self, ordinal: int) -> None:
        if self.outages.pop(ordinal, None) is not None:
            log.info("proxy %d answers again", ordinal)


async def each(work: Iterable[Any]) -> list[Any]:
    """All at once, up to `AT_ONCE`; what they return, or the FleetErrors that they raise, in order."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(coroutine: Any) -> Any:
        async with slots:
            try:
                return await coroutine
            except FleetError as error:
                return error

    coroutines = list(work)
    try:
        return await asyncio.gather(*map(one, coroutines))
    except asyncio.CancelledError:
        # All are cancelled by now. Those that had not begun never do, of which Python would warn.
        for coroutine in coroutines:
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        raise


async def repeat_by_owner(
    names: Callable[[], Iterable[str]], call: Callable[[str], Awaitable[object]], *, every: float
) -> None:
    """Make a call for each of the names that there are then, every so many seconds, until cancelled. Each owner by
    itself: one that does not answer holds up no call to another. FleetErrors are dropped."""
    busy: set[int | None] = set()

    async def call_all(owner: int | None, of_owner: list[str]) -> None:
        await each(map(call, of_owner))
        busy.discard(owner)

    async with asyncio.TaskGroup() as tasks:
        while True:
            await asyncio.sleep(every)
            for owner, of_owner in grouped(dict.fromkeys(names()), owner_of).items():
                if owner not in busy:
                    busy.add(owner)
                    tasks.create_task(call_all(owner, of_owner))


def raise_first(answers: Iterable[object]) -> None:
    """Raises the first of the FleetErrors among what `each` returned."""
    for answer in answers:
        if isinstance(answer, FleetError):
            raise answer


async def paged(
    fetch: Callable[[dict[str, str | int]], Awaitable[Listed]], query: Mapping[str, str | int]
) -> AsyncIterator[Listed]:
    """The pages of a list, each asked for with the cursor of the one before it."""
    asked = dict(query)
    while True:
        page = await fetch(asked)
        yield page
        if page.cursor is None:
            return
        asked["cursor"] = page.cursor
