"""Draining: no new sessions, calls held, what is under way finished or cut, and then stay, restart or exit.

A *cordon* takes no new sessions. A *quiesce* also holds new calls, without a status line, until the drain is undone or
the proxy ends; what is under way has `drain_timeout` seconds, and is then cut. Before a restart it begins to hold when
the next worker is ready, so that nobody waits for that. A drain is undone by its caller, or when it is not renewed
within its time to live. Past the point where the proxy begins to end there is no way back.
"""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Protocol

import msgspec

from rolloutfleet.broadcast import Broadcast
from rolloutfleet.wire import AskDrain, DrainMode, DrainThen
from rolloutfleet_proxy.domain.errors import (
    DiskFull,
    DomainError,
    DrainConflict,
    HeldTooLong,
    InvalidParameter,
    Stopping,
)
from rolloutfleet_proxy.store import boots
from rolloutfleet_proxy.store.boots import Crash
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.store.writer import Writer
from rolloutfleet_proxy.telemetry import logger

POLL_INTERVAL: Final = 0.05
"""Seconds between two looks at what is still under way."""
LAST_RECEIPTS: Final = 1.0
"""Seconds for which the end waits, unless calls were cut, for what other proxies say of the last answers."""

_FACT = "drain"


class Host(Protocol):
    """Who keeps this process: it can end it, and a parent can have another one follow."""

    def ends_in(self, then: DrainThen) -> None:
        """Told at every change what the drain will end in. For `restart` a successor is made ready."""

    def successor(self) -> bool | str:
        """Whether the successor is ready; the reason where there won't be one."""

    def end(self) -> None:
        """Stop accepting, and end."""


class NoHost:
    """For an app that somebody else's server runs: it can be drained, and no more."""

    def ends_in(self, then: DrainThen) -> None: ...

    def successor(self) -> bool | str:
        return "nobody starts one"

    def end(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A drain in force. `since` is the time of day; `began` and `expires` are of the loop's clock.

    `began` is when it began to hold calls, where it `holds` them. `found` is the id of a drain that was quiet already
    when a signal ended the proxy: whoever had asked for it learns that it has led to this.
    """

    id: str
    reason: str
    mode: DrainMode
    then: DrainThen
    since: float
    began: float
    expires: float
    holds: bool
    found: str | None = None

    def kept(self) -> dict[str, Any]:
        """What outlives the process, and is shown."""
        return {name: getattr(self, name) for name in ("id", "reason", "mode", "then", "since")}


@dataclass(eq=False, slots=True, kw_only=True)
class Drains:
    """The one drain that may be in force, and the gate that calls pass."""

    store: Writer
    under_way: Callable[[float], int]
    """How much is to be waited for that began before a time of the loop's clock."""
    cut: Callable[[], None]
    """Ends the calls in flight, with `stopping`."""
    host: Host
    timeout: float
    """Seconds that calls in flight have to finish in."""
    leave_time: float
    """Seconds from the begin of a drain to the exit that it asks for, at the least: others send calls until they have
    seen that this proxy is not ready. A signal does not wait: whoever sends one has let them know before."""
    max_hold: float
    """Seconds that one is held at the most."""
    served: Callable[[], float]
    wall: Callable[[], float] = time.time
    begins_to_hold: Callable[[], None] = lambda: None
    """Told when new calls are held from now on: those who only look on are to leave."""
    awaits_receipts: Callable[[], bool] = lambda: False
    """True while other proxies have still to say what became of answers."""
    over: bool = False
    """The proxy ends: no connection is taken, and whoever asks is sent to the next one."""
    drain: Drain | None = None
    stopped: bool = False
    """The proxy was told to stop, by a signal, rather than to let another worker follow."""
    _ending: bool = False
    _changing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _changed: Broadcast = field(default_factory=Broadcast)
    _keeping: asyncio.Task[None] | None = None

    @property
    def held(self) -> int:
        """Calls that wait for the drain to be undone, or the proxy to end."""
        return self._changed.waiting

    @property
    def holding(self) -> bool:
        """Whether new calls are held."""
        return self.over or (self.drain is not None and self.drain.holds)

    @property
    def ending_since(self) -> float | None:
        """Since when, by the loop's clock, the proxy waits for what is under way so that it can end; else None."""
        drain = self.drain
        return drain.began if drain is not None and drain.holds and drain.then != "stay" else None

    def holds(self, *, let_in: bool) -> bool:
        """True where a call is held. One to be `let_in` is not while there is time: its body was arriving before the
        drain, or it says that it asks again, and so has waited before.

        Else an agent that meets one restart after another would be sent away from each. Where the drain is to stay,
        it is held as well: nothing may begin then.
        """
        drain = self.drain
        if not self.holding or self._ending or not let_in or drain is None or drain.then == "stay":
            return self.holding
        return self._now() >= drain.began + self.timeout

    @property
    def draining(self) -> bool:
        """Whether no new sessions are taken."""
        return self.over or self.drain is not None

    @property
    def last_words(self) -> tuple[str, str | None]:
        """Why this life ends, and the id of the drain that ended it."""
        drain = self.drain
        if drain is None or drain.then == "stay":
            return "stopped", None
        if drain.id == "":
            return f"stopped: {drain.reason}", drain.found
        return (f"planned: {drain.reason}" if drain.reason else "planned"), drain.id

    def shown(self) -> dict[str, Any] | None:
        """As /stats has it: times of day in seconds, `deadline` when calls are cut, `expires` when it is undone."""
        drain = self.drain
        if drain is None:
            return None
        now, day = self._now(), self.wall()
        expires = None if drain.expires == float("inf") else day + drain.expires - now
        return {
            **drain.kept(),
            "deadline": day + drain.began + self.timeout - now if drain.holds else None,
            "expires": expires,
            "holding": drain.holds,
            "held": self.held,
            "under_way": self.under_way(drain.began) if drain.holds else None,
        }

    async def boot(self, crash: Crash | None) -> None:
        """Write this boot down, and go on with the drain that the last life was in and meant to stay in.

        On a full disk neither is done: a proxy that can't note its start still serves what it has.
        """
        try:
            found = await self.store.run(partial(_boot, crash=crash))
        except DiskFull as error:
            logger.warning("this boot could not be recorded: %s", error)
            return
        left = 0.0 if found is None else found["expires"] - self.served()
        if found is None or left <= 0:
            return
        holds = found["mode"] == "quiesce"
        now = self._now()
        self._apply(Drain(**found | {"then": "stay", "began": now, "expires": now + left, "holds": holds}))

    async def ask(self, asked: AskDrain) -> dict[str, Any]:
        """Drain, or renew the drain of that id; one with that id that has led to a boot is answered, not repeated.

        Raises InvalidParameter, DrainConflict where another one is in force, Stopping where the proxy ends already.
        """
        if asked.mode == "cordon" and asked.then != "stay":
            raise InvalidParameter("then", f"A cordon can only stay; to {asked.then} ask for mode: quiesce.")
        if asked.then != "stay" and isinstance(self.host, NoHost):
            raise InvalidParameter("then", "This proxy runs without its parent process, so it can only stay.")
        # In a task of its own: a caller that goes away must not leave memory and disk apart.
        return await asyncio.shield(asyncio.create_task(self._ask(asked)))

    async def undo(self, id: str | None = None) -> str | None:
        """End the drain, or only one of that id; returns the id of what was ended.

        Raises DrainConflict for another id, Stopping where the proxy ends already.
        """
        return await asyncio.shield(asyncio.create_task(self._undo(id)))

    def stop(self, reason: str) -> None:
        """Quiesce and exit, whatever drain is in force; for signals. Not undone."""
        self.stopped = True
        if self._ending:
            return
        now = self._now()
        before = self.drain
        kept = before is not None and before.then == "exit"
        quiet = before is not None and before.mode == "quiesce" and before.then == "stay"
        self._apply(
            Drain(
                id=before.id if before is not None and kept else "",
                reason=before.reason if before is not None and kept else reason,
                mode="quiesce",
                then="exit",
                since=self.wall(),
                began=now,
                expires=float("inf"),
                holds=True,
                found=before.id if before is not None and quiet else None,
            )
        )

    async def passed(self, gone: Callable[[], bool] = lambda: False) -> None:
        """Return when calls are not held, or no longer, or once its session is `gone`.

        Raises Stopping when the proxy ends, and Draining past `max_hold`.
        """
        if not self.holding:
            return
        until = self._now() + self.max_hold
        while self.holding and not gone():
            if self.over:
                raise Stopping()
            left = until - self._now()
            if left <= 0:
                raise HeldTooLong(f"This proxy has been draining for more than {self.max_hold:g} s.")
            await self._changed.wait(left)

    def look_again(self) -> None:
        """A session has ended: whoever is held for it is told so."""
        self._changed.wake()

    def refuse_all(self) -> None:
        """No connection is taken any more: who is held, and who still asks, is sent to the next worker."""
        self._ending = self.over = True
        self._changed.wake()
        self.begins_to_hold()

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)

    async def _ask(self, asked: AskDrain) -> dict[str, Any]:
        async with self._changing:
            now, before = self._now(), self.drain
            self._check_possible(before, asked.id)
            if before is None and asked.then != "stay" and await self.store.run(lambda t: boots.has(t, asked.id)):
                return {**asked.model_dump(exclude={"ttl"}), "since": None, "deadline": None, "done": True}
            same = before is not None and (before.mode, before.then) == (asked.mode, asked.then)
            holds = before.holds if same and before is not None else asked.mode == "quiesce" and asked.then != "restart"
            drain = Drain(
                **asked.model_dump(exclude={"ttl"}),
                since=before.since if before is not None else self.wall(),
                began=before.began if before is not None and before.holds and holds else now,
                expires=now + asked.ttl,
                holds=holds,
            )
            await self._write(lambda transaction: _save(transaction, drain, ttl=asked.ttl))
            self._check_goes_on()
            self._apply(drain)
            return {**(self.shown() or {}), "done": False}

    async def _undo(self, id: str | None) -> str | None:
        async with self._changing:
            before = self.drain
            if before is None and not self._ending:
                return None
            self._check_possible(before, before.id if before is not None and id is None else id)
            assert before is not None
            await self._write(_forget)
            self._check_goes_on()
            self._apply(None)
            return before.id

    def _check_goes_on(self) -> None:
        if self._ending or self.stopped:
            raise Stopping()

    def _check_possible(self, before: Drain | None, id: str | None) -> None:
        self._check_goes_on()
        if before is not None and before.id != id:
            raise DrainConflict(f"Drain {before.id!r} is in force. Renew it by its id, or end it with DELETE /drain.")

    async def _write(self, operation: Callable[[Transaction], None]) -> None:
        try:
            await self.store.run(operation)
        except DomainError as error:
            # A full disk, or a store that is busy, is a reason to drain rather than one against it.
            logger.warning("a drain is not on disk, and would not outlive a crash: %s", error)

    def _apply(self, drain: Drain | None) -> None:
        before, self.drain = self.drain, drain
        then = "stay" if drain is None else drain.then
        if before is None or drain is None or (before.mode, before.then) != (drain.mode, drain.then):
            self.host.ends_in(then)
            _log(before, drain)
        self._changed.wake()
        if self.holding:
            self.begins_to_hold()
        if drain is not None and (self._keeping is None or self._keeping.done()):
            self._keeping = asyncio.create_task(self._keep(), name="drain")

    async def _keep(self) -> None:
        """Follow the drain in force: undo it in time, wait for what is under way, cut it, end."""
        cut_for: float | None = None
        done_since: float | None = None
        while self.drain is not None:
            drain, now = self.drain, self._now()
            if now >= drain.expires:
                await self._expire(drain)
                continue
            if drain.mode == "quiesce" and not drain.holds:
                await self._look_for_successor(drain)
            elif drain.holds:
                left = self.under_way(drain.began)
                if left and now >= drain.began + self.timeout and cut_for != drain.began:
                    logger.info("drain %s: %d calls in flight are aborted", drain.id or drain.reason, left)
                    cut_for = drain.began
                    self.cut()
                is_cut = cut_for == drain.began
                if drain.then != "stay" and (not left or is_cut) and not self._leaves(drain, now):
                    done_since = now if done_since is None else done_since
                    if is_cut or not self.awaits_receipts() or now >= done_since + LAST_RECEIPTS:
                        self._begin_to_end()
                        return
            await asyncio.sleep(POLL_INTERVAL)

    def _leaves(self, drain: Drain, now: float) -> bool:
        """True while the exit has to wait until others have seen that it comes."""
        return drain.then == "exit" and not self.stopped and now < drain.began + self.leave_time

    async def _look_for_successor(self, drain: Drain) -> None:
        """Begin to hold calls when it is ready. A restart without one is undone: the calls go on here."""
        successor = self.host.successor()
        if isinstance(successor, str):
            logger.error("drain %s is undone: the next worker %s", drain.id, successor)
            await self._expire(drain)
        elif successor:
            self.drain = replace(drain, began=self._now(), holds=True)
            self.begins_to_hold()

    async def _expire(self, drain: Drain) -> None:
        async with self._changing:
            if self.drain is drain:
                await self._write(_forget)
                if self.drain is drain:
                    self._apply(None)

    def _begin_to_end(self) -> None:
        self._ending = True
        self.cut()  # what waits in a pause, with nothing made yet, loses nothing by asking again
        self.host.end()

    def _now(self) -> float:
        return asyncio.get_running_loop().time()


def _log(before: Drain | None, after: Drain | None) -> None:
    if after is None:
        assert before is not None
        logger.info("drain %s is over: calls and sessions are accepted again", before.id)
    else:
        named = f"{after.id} ({after.reason})" if after.id and after.reason else after.id or after.reason
        logger.info("drain %s: %s, then %s", named, after.mode, after.then)


def _boot(transaction: Transaction, *, crash: Crash | None) -> dict[str, Any] | None:
    """Log the boot; returns the drain that is still in force. One that ended the last life is over with it."""
    kept = transaction.fact(_FACT)
    drain: dict[str, Any] | None = None if kept is None else msgspec.json.decode(kept)
    ended = drain is not None and (drain["then"] != "stay" or drain["id"] == boots.ended_by(transaction))
    if ended or (drain is not None and drain["expires"] <= transaction.served):
        _forget(transaction)
    boots.begin(transaction, crash=crash, drain=drain["id"] if drain is not None and ended else None)
    return None if ended else drain


def _save(transaction: Transaction, drain: Drain, *, ttl: float) -> None:
    kept = drain.kept() | {"expires": transaction.served + ttl}
    transaction.set_fact(_FACT, msgspec.json.encode(kept).decode())


def _forget(transaction: Transaction) -> None:
    transaction.forget_fact(_FACT)
