"""A session's tensors brought together: those that go with it, and those that its metadata refers to.

What is kept here is read in place; what another proxy keeps is fetched to a file that goes when it has been read. So
nothing of it has to fit in memory. An owner is asked at an address of the fleet alone, as the admin's key goes with it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from urllib.parse import quote

from rolloutfleet.tensors import RemoteTensor, remote_tensors
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.domain.errors import DiskError, OwnerFailed, OwnerUnavailable
from rolloutfleet_proxy.ids import TENSOR, Owner, owner_of_name
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.sessions.auth import BadKeyFile
from rolloutfleet_proxy.shards.files import Gathered, Readable
from rolloutfleet_proxy.shards.header import NotTensors
from rolloutfleet_proxy.store.shards import Shard, shards_of_session
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.telemetry import logger

TIMEOUT: Final = 60.0
"""Seconds that a proxy has to send one tensor."""
CONCURRENT_FETCHES: Final = 4
"""Tensors that are fetched at the same time."""


_NOT_NOW: Final = (OwnerFailed, NotTensors, DiskError, BadKeyFile)


@dataclass(eq=False, slots=True)
class Gatherer:
    """Finds tensors in the whole fleet. `admin_key` brings the key that proxies know, when it is needed."""

    shards: Shards
    reader: Reader
    peers: Peers
    own: Owner
    admin_key: Callable[[], str]
    limit: int
    """The most bytes that a tensor may have."""

    @asynccontextmanager
    async def of_session(self, session: int, metadata: Any) -> AsyncIterator[Gathered]:
        """The shards tied to a session, by its row id, and those that its metadata refers to, until the block ends."""
        tied = await self.reader.run(lambda connection: shards_of_session(connection, session))
        async with self.gathered(remote_tensors(metadata)) as found:
            for shard in tied:
                found.tensors[shard.name] = self._kept(shard)
            found.gone = [name for name in found.gone if name not in found.tensors]
            yield found

    @asynccontextmanager
    async def gathered(self, references: Iterable[RemoteTensor]) -> AsyncIterator[Gathered]:
        """The tensors that are referred to, until the block ends. Nothing is raised for those that can't be had."""
        found = Gathered()
        by_owner: dict[int, dict[str, None]] = {}
        for reference in references:
            ordinal = self._ordinal_of(reference)
            if ordinal is None and reference.shard_id not in found.gone:
                found.gone.append(reference.shard_id)
            elif ordinal is not None:
                by_owner.setdefault(ordinal, {})[reference.shard_id] = None
        await self._find_here(list(by_owner.pop(self.own.ordinal, ())), found)
        async with AsyncExitStack() as fetched:
            await self._fetch_all(by_owner, found, fetched)
            yield found

    def _kept(self, shard: Shard) -> Readable:
        return Readable(shard.form, partial(self.shards.pieces, shard))

    def _ordinal_of(self, reference: RemoteTensor) -> int | None:
        """By the id where that says it, else by the address; None where the fleet has no such proxy."""
        owner = owner_of_name(reference.shard_id, kind=TENSOR)
        if owner is not None:
            return owner.ordinal if owner.ordinal < self.peers.replicas else None
        addresses = {self.peers.address(ordinal): ordinal for ordinal in range(self.peers.replicas)}
        addresses[self.peers.address(self.own.ordinal)] = self.own.ordinal
        return addresses.get(reference.owner.rstrip("/"))

    async def _find_here(self, names: list[str], found: Gathered) -> None:
        kept = await self.shards.find(names)
        for name in names:
            if name in kept:
                found.tensors[name] = self._kept(kept[name])
            else:
                found.gone.append(name)

    async def _fetch_all(self, by_owner: Mapping[int, Iterable[str]], found: Gathered, fetched: AsyncExitStack) -> None:
        places = asyncio.Semaphore(CONCURRENT_FETCHES)
        silent: set[int] = set()

        async def fetch(ordinal: int, name: str) -> None:
            async with places:
                if ordinal in silent:
                    found.unreachable.append(name)
                    return
                try:
                    readable = await self._fetch(ordinal, name, fetched)
                except _NOT_NOW as error:
                    logger.warning("shard %s could not be fetched from proxy %d: %s", name, ordinal, error)
                    found.unreachable.append(name)
                    silent.add(ordinal)
                else:
                    if readable is None:
                        found.gone.append(name)
                    else:
                        found.tensors[name] = readable

        async with asyncio.TaskGroup() as fetching:
            for ordinal, names in by_owner.items():
                for name in names:
                    fetching.create_task(fetch(ordinal, name))

    async def _fetch(self, ordinal: int, name: str, fetched: AsyncExitStack) -> Readable | None:
        """None where its owner has it no longer."""
        path = f"/shards/{quote(name, safe='')}"
        headers = {"Authorization": f"Bearer {self.admin_key()}"}
        async with self.peers.request(ordinal, "GET", path, timeout=TIMEOUT, headers=headers) as response:
            if response.status in (404, 410):
                return None
            if response.status != 200:
                raise OwnerUnavailable(ordinal, f"it answered with status {response.status}")
            return await fetched.enter_async_context(
                self.shards.borrowed(name, _limited(response.content.iter_any(), self.limit))
            )


async def _limited(body: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    async for data in body:
        limit -= len(data)
        if limit < 0:
            raise NotTensors("it is larger than a shard may be here")
        yield data
