"""The warning Events of a namespace, read once for all of its fleets that look for a reason at about the same time."""

import asyncio
from collections.abc import Callable
from typing import Final

from rolloutfleet_operator.cluster import observe
from rolloutfleet_operator.cluster.api import Api, ApiRefused

MOST_EVENTS: Final = 500
GOOD_FOR: Final = 2.0
"""Seconds; Events come that late anyway."""


class Warned:
    """`clock` tells seconds."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._read: dict[str, tuple[float, observe.Warnings]] = {}
        self._reading: dict[str, asyncio.Lock] = {}

    async def of(self, namespace: str) -> observe.Warnings:
        """None are known where Events may not be read. Raises ApiUnreachable."""
        async with self._reading.setdefault(namespace, asyncio.Lock()):
            at, known = self._read.get(namespace, (None, observe.Warnings()))
            if at is None or self._clock() - at >= GOOD_FOR:
                known = await self._list(namespace)
                self._forget_old()
                self._read[namespace] = self._clock(), known
            return known

    def _forget_old(self) -> None:
        now = self._clock()
        self._read = {name: read for name, read in self._read.items() if now - read[0] < GOOD_FOR}

    async def _list(self, namespace: str) -> observe.Warnings:
        try:
            return observe.warnings(await self._api.list("Event", namespace, fields="type=Warning", limit=MOST_EVENTS))
        except ApiRefused:
            return observe.Warnings()
