"""Leasing ahead: one task a proxy leases a page, waits until that is wanted, and leases the next. Named sessions that
one answer can't hold are split among several tasks.

So a proxy that is down or slow delays what it holds itself, and nothing else. Where a number is wanted, no more is
leased than is still missing, but for whole groups, and for what a proxy brings that was so slow that others were asked.
"""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, Literal

from pydantic import Field

from rolloutfleet.backoff import Backoff
from rolloutfleet.broadcast import Broadcast
from rolloutfleet.errors import IDEMPOTENCY_KEY_REUSED, INVALID_REQUEST
from rolloutfleet.fleet.exceptions import FleetError, Refused, Unreachable
from rolloutfleet.fleet.leases import READ_TIMEOUT, Leases
from rolloutfleet.fleet.outbox import Deliver
from rolloutfleet.fleet.proxies import Proxies, new_key, owner_of
from rolloutfleet.fleet.retries import wait_before_retry
from rolloutfleet.fleet.trajectories import Page, Trajectory, read_export
from rolloutfleet.grouping import grouped
from rolloutfleet.tasks import end_tasks
from rolloutfleet.wire import JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE, AboveZero, AskExport, AtLeastOne, ExportStatus

log = logging.getLogger("rolloutfleet.fleet")

OnExit = Literal["acknowledge", "keep"]

SLOW: Final = 1.0
"""Seconds after which what a proxy was asked for is asked of others."""
POLLS: Final = Backoff(first=0.05, longest=1.0)
"""Between questions to a proxy that has nothing."""
FOLLOW_INTERVAL: Final = 1.0
_NOT_YET: Final = frozenset(("not_ready", "leased_elsewhere"))
_OF_NOBODY: Final = AskExport(session_ids=["nobody"])
"""No session has that name: it leases nothing, and is refused where its key was used for anything else."""


class ExportOptions(AskExport):
    """What an export is to bring. Whose sessions, and how many trajectories, is said anew in each call."""

    count: AtLeastOne | None = None
    wait: bool
    page: AtLeastOne = 16
    prefetch: AtLeastOne = 1
    timeout: AboveZero | None = None
    grace: Annotated[float, Field(allow_inf_nan=True)] = 5.0
    on_exit: OnExit = "acknowledge"

    @property
    def named(self) -> bool:
        return self.session_ids is not None or self.group_id is not None

    def request(self, session_ids: tuple[str, ...] | None, most: int) -> AskExport:
        """The body of a call. Raises pydantic's ValidationError."""
        of_every_call = {name: getattr(self, name) for name in AskExport.model_fields}
        names = None if session_ids is None else list(session_ids)
        of_this_call = {"session_ids": names, "max_trajectories": None if self.named else most}
        return AskExport.model_validate(of_every_call | of_this_call)


@dataclass(slots=True)
class _Part:
    """What one proxy is asked for, and what it brought."""

    ordinal: int
    session_ids: tuple[str, ...] | None = None
    ready: deque[Trajectory] = field(default_factory=deque)
    asked_for: int = 0
    asked_at: float = 0.0
    done: bool = False
    """Whether its last answer was that there is nothing more, for now."""
    down_since: float | None = None
    """Since when it has not answered, or asked to wait."""
    why: str = ""
    left: bool = False
    """Whether it was scaled away. What it brought before is still handed out."""
    error: FleetError | None = None


@dataclass(eq=False, repr=False)
class Prefetcher:
    """All parts of an export. One event loop's; begun once and stopped once."""

    _proxies: Proxies
    _leases: Leases
    held: dict[str, str]
    """The lease of each trajectory that is leased and neither acknowledged nor given back."""
    _wanted: ExportOptions
    _still_wanted: Callable[[], int | None]
    """How many more the trainer wants of what is not `ready` yet; None: all there are."""
    _heard: Callable[[int, int], None]
    """Told the run and version of each answer."""
    statuses: dict[str, ExportStatus] = field(default_factory=dict, init=False)
    signal: Broadcast = field(default_factory=Broadcast, init=False)
    _parts: deque[_Part] = field(default_factory=deque, init=False)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    _telling: list[asyncio.Task[None]] = field(default_factory=list, init=False)
    """Acknowledgements of what came again; they are never cancelled."""
    _broken_off: list[tuple[str, Deliver]] = field(default_factory=list, init=False)
    """Asks whose answers nobody has seen, and how to give back what they leased."""

    async def begin(self) -> None:
        """Ask everyone who may have something. Raises Unreachable where nobody is known."""
        ordinals = await self._proxies.ordinals()
        for part in self._plan(ordinals):
            self._begin(part)
        if not self._wanted.named:
            self._tasks.append(asyncio.create_task(self._follow()))
        self._tasks.append(asyncio.create_task(self._leases.keep(self.held, seconds=self._wanted.lease_seconds)))

    async def stop(self) -> None:
        """Ask for nothing more. A lease whose answer was under way is given back."""
        await end_tasks(self._tasks)
        await asyncio.gather(*self._telling, return_exceptions=True)
        await asyncio.gather(
            *(self._proxies.outbox.deliver(what, deliver) for what, deliver in self._broken_off), return_exceptions=True
        )

    @property
    def ready(self) -> int:
        """How many trajectories are here."""
        return sum(len(part.ready) for part in self._parts)

    def take_group(self) -> list[Trajectory]:
        """The trajectories of one group that are here, of each proxy in turn. Raises what ended a part."""
        for part in self._parts:
            if part.error is not None:
                raise part.error
        for _ in range(len(self._parts)):
            part = self._parts[0]
            self._parts.rotate(-1)
            if part.ready:
                group = part.ready[0].group_id
                found = []
                while part.ready and part.ready[0].group_id == group:
                    found.append(part.ready.popleft())
                self.signal.wake()
                return found
        return []

    @property
    def missing(self) -> dict[int, str]:
        """Proxies that don't answer or ask to wait, and why."""
        return {part.ordinal: part.why for part in self._parts if part.down_since is not None and not part.left}

    def over(self) -> bool:
        """Whether nothing more will come: all have said so, but for those that are down for longer than the grace."""
        if self._wanted.wait and not self._wanted.named:
            return False
        now = self._proxies.clock()
        return all(
            part.done or (part.down_since is not None and now - part.down_since >= self._wanted.grace)
            for part in self._parts
        )

    # Whom to ask

    def _plan(self, ordinals: list[int]) -> list[_Part]:
        asked = self._wanted
        if asked.group_id is not None:
            return [_Part(_at(asked.group_id, ordinals))]
        if asked.session_ids is None:
            return [_Part(ordinal) for ordinal in ordinals]
        by_owner = grouped(asked.session_ids, lambda name: _at(name, ordinals))
        return [_Part(ordinal, tuple(names)) for ordinal, names in by_owner.items()]

    def _begin(self, part: _Part) -> None:
        self._parts.append(part)
        self._tasks.append(asyncio.create_task(self._pull(part)))

    async def _follow(self) -> None:
        """Proxies that come are asked, too."""
        while True:
            await asyncio.sleep(FOLLOW_INTERVAL)
            with contextlib.suppress(FleetError):
                here = {part.ordinal for part in self._parts if not part.left}
                for ordinal in set(await self._proxies.ordinals()) - here:
                    self._begin(_Part(ordinal))

    # One part

    async def _pull(self, part: _Part) -> None:
        try:
            in_vain = 0
            while True:
                page = await self._asked(part, await self._until_wanted(part))
                if self._kept(part, page):
                    in_vain = 0
                    if not self._wanted.named:
                        continue
                if self._finished(part):
                    return
                in_vain += 1
                await asyncio.sleep(POLLS.after(in_vain))
        except FleetError as error:
            # Scaled away while it was asked: its data stays with it, and nobody waits for it.
            part.left = part.ordinal not in self._proxies.known
            part.error = error if not part.left or self._wanted.named else None
        finally:
            part.done = True
            self.signal.wake()

    def _finished(self, part: _Part) -> bool:
        """Whether there is no sense in asking again."""
        if self._wanted.named:
            names = part.session_ids if part.session_ids is not None else tuple(self.statuses)
            waiting = tuple(name for name in names if self.statuses.get(name) in _NOT_YET)
            if part.session_ids is not None:
                part.session_ids = waiting
            part.done = not waiting
        else:
            part.done = True
        self.signal.wake()
        return part.done if self._wanted.named and self._wanted.wait else not self._wanted.wait

    async def _until_wanted(self, part: _Part) -> int:
        """How many to ask for, once that is any."""
        while True:
            if len(part.ready) < self._wanted.prefetch * self._wanted.page:
                most = self._most_wanted(part)
                if most > 0:
                    return most
            await self.signal.wait(POLLS.longest)

    def _most_wanted(self, part: _Part) -> int:
        wanted = self._still_wanted()
        if wanted is None:
            return self._wanted.page
        now = self._proxies.clock()
        coming = sum(each.asked_for for each in self._parts if each is not part and now - each.asked_at < SLOW)
        return min(self._wanted.page, wanted - self.ready - coming)

    async def _asked(self, part: _Part, most: int) -> Page:
        """Ask with one key until there is an answer: a lost one comes again, with the same lease."""
        key = new_key()
        body = self._wanted.request(part.session_ids, most)
        part.asked_for, part.asked_at = most, self._proxies.clock()
        try:
            return await self._answered(part, body, key)
        except asyncio.CancelledError:
            what = f"an export of proxy {part.ordinal} that was broken off"
            self._broken_off.append((what, partial(self._undo, part, body, key)))
            raise
        except Refused as error:
            # One answer can't hold all of it: ask for less at once. Proxies of earlier releases name no parameter.
            names = part.session_ids or ()
            if error.code != INVALID_REQUEST or error.param not in (None, "max_trajectories"):
                raise
            if len(names) > 1:
                part.session_ids = names[: len(names) // 2]
                self._begin(_Part(part.ordinal, names[len(names) // 2 :]))
            elif most > 1 and not self._wanted.named:
                most //= 2
            else:
                raise
            return await self._asked(part, most)
        finally:
            part.asked_for = 0

    async def _answered(self, part: _Part, body: AskExport, key: str) -> Page:
        attempt = 0
        while True:
            try:
                page = await self._once(part, body, key)
                part.down_since = None
                return page
            except (Refused, Unreachable) as error:
                wait = wait_before_retry(error, attempt=attempt, chance=1.0)
                if wait is None or part.ordinal not in self._proxies.known:
                    raise
                part.down_since, part.why = part.down_since or self._proxies.clock(), str(error)
            # Whatever it was asked for may come from others.
            part.asked_for = 0
            self.signal.wake()
            await asyncio.sleep(wait)
            attempt += 1

    async def _once(self, part: _Part, body: AskExport, key: str) -> Page:
        accept = JSON_MEDIA_TYPE if self._wanted.as_ == "shards" else TENSORS_MEDIA_TYPE
        answer = await self._proxies.ask(
            part.ordinal, "POST", "/export", body=body, key=key, accept=accept, timeout=READ_TIMEOUT
        )
        media_type = answer.headers.get("content-type", accept)
        return await asyncio.to_thread(read_export, answer.content, media_type=media_type)

    def _kept(self, part: _Part, page: Page) -> bool:
        """Take what a page brought; whether that is anything."""
        self._heard(page.answer.run, page.answer.version)
        for each in page.answer.sessions:
            # A group is asked for as a whole again, while some of it is to come: the rest is leased, by this export.
            if each.status != "leased_elsewhere" or self.statuses.get(each.session_id) != "leased":
                self.statuses[each.session_id] = each.status
        lease = page.answer.lease_id
        if lease is None:
            return False
        known = self._leases.trained & {each.trajectory_id for each in page.trajectories}
        if known:
            # Trained long ago; the proxy had not heard of it, or too late.
            self._telling.append(asyncio.create_task(self._again(lease, known)))
        fresh = [each for each in page.trajectories if each.trajectory_id not in known]
        part.ready.extend(each for each in fresh if each.trajectory_id not in self.held)
        self.held.update((each.trajectory_id, lease) for each in fresh)
        part.done = False
        self.signal.wake()
        return True

    async def _again(self, lease: str, trajectory_ids: frozenset[str]) -> None:
        try:
            await self._leases.repeat_acknowledged([(lease, trajectory_ids)])
        except FleetError as error:
            log.warning("an acknowledgement was refused: %s", error)

    async def _undo(self, part: _Part, body: AskExport, key: str) -> None:
        """Nobody waits for this answer any more, but it may have leased something: find out what, and give it back."""
        try:
            # To ask the same again would lease something where it was never heard.
            await self._proxies.ask(part.ordinal, "POST", "/export", body=_OF_NOBODY, key=key)
        except Refused as error:
            if error.code != IDEMPOTENCY_KEY_REUSED:
                raise
            page = await self._once(part, body, key)
            if page.answer.lease_id is not None:
                await self._leases.release({page.answer.lease_id: [each.trajectory_id for each in page.trajectories]})


def _at(name: str, ordinals: list[int]) -> int:
    """Whom to ask for a name: its owner, else anybody, who says that there is no such thing."""
    owner = owner_of(name)
    return ordinals[0] if owner is None else owner
