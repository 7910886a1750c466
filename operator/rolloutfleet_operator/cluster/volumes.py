"""Node-local volumes and cordoned nodes: a pod that is evicted from such a node waits until it is uncordoned."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from rolloutfleet_operator.cluster import observe
from rolloutfleet_operator.cluster.api import Api, Object, unless_forbidden

CACHE_TTL: Final = 10.0
"""Seconds for which a list of cordoned nodes serves all fleets: to answer it, the API server goes through all nodes."""


class Volumes:
    """Volumes of one fleet. Each is read once, as its node affinity never changes."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._known: dict[str, bool] = {}

    async def are_node_local(self, claims: Iterable[Object]) -> bool:
        """True where one of the claims' volumes is, False where they may not be read, as by an operator of one
        namespace.

        Raises ApiUnreachable and, for what may be read another time, ApiRefused.
        """
        names = {name for claim in claims if (name := claim["spec"].get("volumeName"))}
        self._known = {name: known for name, known in self._known.items() if name in names}
        with unless_forbidden():
            for name in names - self._known.keys():
                volume = await self._api.get("PersistentVolume", None, name)
                self._known[name] = volume is not None and observe.is_node_local(volume)
        return any(self._known.values())


class CordonedNodes:
    """The cluster's cordoned nodes, cached for a moment. `clock` tells seconds."""

    def __init__(self, api: Api, clock: Callable[[], float]) -> None:
        self._api, self._clock = api, clock
        self._names, self._read_at = frozenset[str](), float("-inf")
        self._reading = asyncio.Lock()

    async def names(self) -> frozenset[str]:
        """None are known where nodes may not be listed. Raises as `Volumes.are_node_local`."""
        async with self._reading:
            if self._clock() - self._read_at >= CACHE_TTL:
                self._names, self._read_at = await self._list(), self._clock()
            return self._names

    async def _list(self) -> frozenset[str]:
        with unless_forbidden():
            nodes = await self._api.list("Node", None, fields="spec.unschedulable=true")
            return frozenset(node["metadata"]["name"] for node in nodes)
        return frozenset()
