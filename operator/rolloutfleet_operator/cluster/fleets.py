"""One task per fleet, which runs its passes: after events, when something is due, and after failures.

Events only wake the task and name the kinds that changed; the objects are read again. A failed pass is retried with
growing delays.
"""

import asyncio
import contextlib
import random
from dataclasses import dataclass, field
from typing import Final

from rolloutfleet.backoff import Backoff
from rolloutfleet.tasks import end_tasks
from rolloutfleet_operator.cluster.api import ApiRefused, ApiUnreachable
from rolloutfleet_operator.cluster.health import Health
from rolloutfleet_operator.cluster.lease import Lease, LeaseLost
from rolloutfleet_operator.cluster.logs import logger
from rolloutfleet_operator.cluster.reconciler import Reconciler, Shared

MAX_CONCURRENT_PASSES: Final = 8
"""Passes at work at once. Of those that wait for proxies or gateways there may be more."""
DEBOUNCE: Final = 0.2
"""Seconds to wait after an event for those that come with it."""
BACKOFF: Final = Backoff(first=1.0, longest=60.0)
"""Between passes that fail."""

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(slots=True)
class _Wake:
    """What makes a fleet's next pass due before its time."""

    event: asyncio.Event = field(default_factory=asyncio.Event)
    changed: set[str] = field(default_factory=set)
    """Kinds of which events told."""

    def taken(self) -> frozenset[str]:
        """The kinds, for the pass that begins now."""
        kinds = frozenset(self.changed)
        self.event.clear()
        self.changed.clear()
        return kinds


class Fleets:
    """All fleets that this operator looks after. Passes are made while it holds the Lease, and end with that."""

    def __init__(self, shared: Shared, lease: Lease, health: Health) -> None:
        self._shared, self._lease, self._health = shared, lease, health
        self._passes: set[asyncio.Task[float | None]] = set()
        lease.on_end.append(self._cut_passes)
        self._tasks: dict[Key, asyncio.Task[None]] = {}
        self._wakes: dict[Key, _Wake] = {}
        self._turns = asyncio.Semaphore(MAX_CONCURRENT_PASSES)

    def wake(self, namespace: str, name: str, kind: str) -> None:
        """Something happened to that fleet, or to an object of that kind which belongs to it."""
        key = (namespace, name)
        if key not in self._tasks:
            self._wakes[key] = _Wake()
            self._shared.slots.expect(f"{namespace}/{name}")
            self._tasks[key] = asyncio.create_task(self._follow(key), name=f"fleet {namespace}/{name}")
        self._wakes[key].changed.add(kind)
        self._wakes[key].event.set()

    def wake_all(self) -> None:
        for wake in self._wakes.values():
            wake.event.set()

    async def close(self) -> None:
        await end_tasks(self._tasks.values())

    async def _follow(self, key: Key) -> None:
        reconciler = Reconciler(self._shared, *key, turns=self._turns, check=self._lease.check)
        failures, due = 0, 0.0
        wake = self._wakes[key]
        try:
            while True:
                await self._until(wake.event, due)
                if not self._lease.leading.is_set():
                    reconciler.begin_anew(failed=False)
                    await self._lease.leading.wait()
                if not self._shared.others.now.leave_us(key[0]):
                    reconciler.begin_anew(failed=True)
                    self._shared.metrics.forget(*key)
                    wake.event.clear()
                    due = BACKOFF.longest
                    continue
                next_in, worked = await self._once(reconciler, wake)
                if next_in is None and not wake.event.is_set():
                    return
                failures = 0 if worked else failures + 1
                due = next_in or 0.0 if worked else BACKOFF.after(failures) * random.uniform(0.5, 1.0)
        finally:
            self._forget(key)

    async def _until(self, wake: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await wake.wait()
                await asyncio.sleep(DEBOUNCE)

    async def _once(self, reconciler: Reconciler, wake: _Wake) -> tuple[float | None, bool]:
        """When the next pass is due, and whether this one worked."""
        extra = {"fleet": reconciler.key, "generation": reconciler.generation}
        try:
            with self._shared.metrics.passes.time():
                next_in = await self._pass(reconciler, wake)
        except LeaseLost:
            return 0.0, True
        except ApiUnreachable as error:
            logger.warning("the API server does not answer: %s", error, extra=extra)
        except ApiRefused as refused:
            logger.warning("the API server refused what a pass needs: %s", refused, extra=extra)
        except Exception:
            logger.exception("a pass failed", extra=extra)
        else:
            self._health.passed()
            return next_in, True
        reconciler.begin_anew(failed=True)
        self._shared.metrics.errors.inc()
        self._health.failed()
        return 0.0, False

    async def _pass(self, reconciler: Reconciler, wake: _Wake) -> float | None:
        """Raises LeaseLost where it was cut short by that; else as `Reconciler.reconcile`."""
        self._lease.check()
        task = asyncio.create_task(reconciler.reconcile(wake.taken()))
        self._passes.add(task)
        try:
            return await task
        except asyncio.CancelledError:
            ourselves = asyncio.current_task()
            if not task.cancelled() or (ourselves is not None and ourselves.cancelling()):
                raise
            raise LeaseLost from None
        finally:
            self._passes.discard(task)

    def _cut_passes(self) -> None:
        self.wake_all()
        for task in self._passes:
            task.cancel()
        for key in self._tasks:
            self._shared.metrics.forget(*key)

    def _forget(self, key: Key) -> None:
        """The fleet is gone. If another of that name comes, its first event makes a new task."""
        self._tasks.pop(key, None)
        self._wakes.pop(key, None)
        self._shared.slots.forget("/".join(key))
        self._shared.metrics.forget(*key)
