"""The warning Events of a namespace, cached for a moment: fleets that need them at the same time share one list."""

import asyncio
from collections.abc import Callable
from typing import Final
from weakref import WeakValueDictionary

from rolloutfleet_operator.cluster import observe
from rolloutfleet_operator.cluster.api import Api, ApiRefused, ApiUnreachable

MOST_EVENTS: Final = 500
CACHE_TTL: Final = 2.0
"""Seconds; Events come that late anyway."""


class WarningEvents:
    """`clock` tells seconds."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._read: dict[str, tuple[float, observe.Warnings]] = {}
        self._reading: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By namespace, while somebody waits."""

    async def of(self, namespace: str) -> observe.Warnings:
        """None are known where Events can't be read: they are reasons, and nothing is done by them."""
        reading = self._reading.setdefault(namespace, asyncio.Lock())
        async with reading:
            self._forget_old()
            if namespace not in self._read:
                known = await self._list(namespace)
                self._read[namespace] = self._clock(), known
            return self._read[namespace][1]

    def _forget_old(self) -> None:
        now = self._clock()
        self._read = {name: read for name, read in self._read.items() if now - read[0] < CACHE_TTL}

    async def _list(self, namespace: str) -> observe.Warnings:
        try:
            return observe.warnings(await self._api.list("Event", namespace, fields="type=Warning", limit=MOST_EVENTS))
        except (ApiRefused, ApiUnreachable):
            return observe.Warnings()
