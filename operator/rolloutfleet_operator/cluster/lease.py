"""The operator's Lease: of the operators that share it, only the holder acts.

The client library's own leader election ends with the first request that fails to connect, never releases the Lease at
its end, and puts no labels on it, by which operators find each other.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from rolloutfleet_operator.cluster.api import Api, ApiRefused, ApiUnreachable, Object
from rolloutfleet_operator.cluster.children.names import OPERATOR
from rolloutfleet_operator.cluster.logs import logger
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.policy.observed import GROUP

DURATION: Final = 15
"""Seconds without a sign of life after which another may take the Lease."""
RENEW_EVERY: Final = 5.0
GIVE_UP_AFTER: Final = 10.0
"""Seconds without a renewal after which nothing is done any more: before anybody else may begin."""
SCOPE: Final = f"{GROUP}/namespace"
"""On the Lease of an operator of one namespace: which."""
LABELS: Final = {"app.kubernetes.io/name": OPERATOR}


class LeaseLost(Exception):
    """This operator may not act any more."""


class Lease:
    """One operator's place in the queue. `leading` is set while it may act."""

    def __init__(
        self,
        api: Api,
        settings: OperatorSettings,
        *,
        identity: str,
        wall: Callable[[], float],
        boot: Callable[[], float],
    ) -> None:
        """`wall` is the time that is written; `boot` counts seconds, also while the machine is suspended."""
        self._api, self._namespace, self._name = api, settings.lease_namespace, settings.lease_name
        self._identity, self._scope, self._wall, self._boot = identity, settings.namespace, wall, boot
        self.leading = asyncio.Event()
        self.on_end: list[Callable[[], object]] = []
        """Called when it may act no more."""
        self._renewed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._seen: tuple[Any, float] = (None, 0.0)
        """The holder's last sign of life, and when it was first seen here: clocks of machines may differ."""

    def check(self) -> None:
        """Raise LeaseLost where it may not act now; timers are late in a process that was stopped."""
        if self.leading.is_set() and self._boot() - self._renewed >= GIVE_UP_AFTER:
            self._end("it was not renewed in time")
        if not self.leading.is_set():
            raise LeaseLost

    async def hold(self) -> None:
        """Take it when it is free, and keep it, until cancelled; then let go of it."""
        try:
            while True:
                await self._try()
                await asyncio.sleep(RENEW_EVERY)
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self.leading.is_set():
                self.leading.clear()
                await asyncio.shield(self._let_go())

    def _end(self, why: str) -> None:
        logger.warning("the Lease is lost: %s; nothing is done until it is held again", why)
        self.leading.clear()
        for tell in self.on_end:
            tell()

    def _due(self) -> None:
        """The time of the last renewal is over, unless the machine's clocks run apart."""
        left = GIVE_UP_AFTER - (self._boot() - self._renewed)
        if not self.leading.is_set():
            return
        if left <= 0:
            self._end("it could not be renewed in time")
        else:
            self._timer = asyncio.get_running_loop().call_later(left, self._due)

    async def _try(self) -> None:
        began = self._boot()
        try:
            async with asyncio.timeout(GIVE_UP_AFTER / 2):
                found = await self._api.get("Lease", self._namespace, self._name)
                if found is not None and not self._free(found):
                    if self.leading.is_set():
                        self._end(f"{found['spec'].get('holderIdentity')} took it")
                    return
                await self._take(found)
        except (ApiUnreachable, ApiRefused, TimeoutError) as error:
            if not (isinstance(error, ApiRefused) and error.status == 409):
                logger.warning("the Lease can't be acquired: %s", error or "no answer")
            return
        self._renewed = began
        if self._boot() - began >= GIVE_UP_AFTER:
            return  # it was answered too late to go by
        if self._timer is not None:
            self._timer.cancel()
        if not self.leading.is_set():
            logger.info("this operator acts now (%s)", self._identity)
            self.leading.set()
        self._due()

    def _free(self, lease: Object) -> bool:
        """Ours, let go of, or silent for as long as it says."""
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") in (None, "", self._identity):
            return True
        sign = (spec.get("holderIdentity"), spec.get("renewTime"))
        if sign != self._seen[0]:
            self._seen = (sign, self._boot())
        return self._boot() - self._seen[1] > float(spec.get("leaseDurationSeconds") or DURATION)

    async def _take(self, found: Object | None) -> None:
        now = _micro(self._wall())
        spec: dict[str, Any] = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION,
            "renewTime": now,
            "acquireTime": now,
            "leaseTransitions": 0,
        }
        if found is None:
            meta = self._marked({"name": self._name, "namespace": self._namespace})
            manifest = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}
            await self._api.create("Lease", self._namespace, manifest)
            return
        before = found.get("spec") or {}
        spec["leaseTransitions"] = before.get("leaseTransitions") or 0
        if before.get("holderIdentity") == self._identity:
            spec["acquireTime"] = before.get("acquireTime") or now
        else:
            spec["leaseTransitions"] += 1
        await self._api.replace({**found, "metadata": self._marked(found["metadata"]), "spec": spec})

    def _marked(self, meta: Mapping[str, Any]) -> dict[str, Any]:
        annotations = {name: text for name, text in (meta.get("annotations") or {}).items() if name != SCOPE}
        if self._scope:
            annotations[SCOPE] = self._scope
        return {**meta, "labels": {**(meta.get("labels") or {}), **LABELS}, "annotations": annotations}

    async def _let_go(self) -> None:
        """So that the next one need not wait."""
        try:
            async with asyncio.timeout(GIVE_UP_AFTER / 2):
                found = await self._api.get("Lease", self._namespace, self._name)
                if found is not None and (found.get("spec") or {}).get("holderIdentity") == self._identity:
                    spec = {**found["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
                    await self._api.replace({**found, "spec": spec})
        except (ApiUnreachable, ApiRefused, TimeoutError):
            return


def _micro(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
