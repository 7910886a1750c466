"""An export's tensors as shards: one for each tensor of each row, so that a trainer's ranks fetch their own rows alone.

Their names follow from the trajectory, the style, the row's last turn and the tensor's name. Nothing else decides what
they hold: turns never change, a trajectory's are fixed when it closes, and returns are numbers of the answer, not
tensors. So the same export, made again for whatever reason, finds what it put before.
"""

from collections.abc import Collection, Iterator
from functools import partial
from typing import Any

import numpy as np

from rolloutfleet.tensors import Form, RemoteTensor
from rolloutfleet_proxy.exports.forms import Plan, References, load_plan, tensor_of, values_of
from rolloutfleet_proxy.exports.rows import TENSORS, Row
from rolloutfleet_proxy.ids import TENSOR, Owner
from rolloutfleet_proxy.shards.shelf import Made, Shards
from rolloutfleet_proxy.store import shards as shard_rows
from rolloutfleet_proxy.store.leases import SHARDS_AFTER_LEASE, Grant
from rolloutfleet_proxy.store.reader import Connection, Read, Reader
from rolloutfleet_proxy.store.writer import Writer


def references(owner: Owner, address: str) -> References:
    """What makes the references to a row's tensors; `address` is where their owner is reached."""

    def of_row(plan: Plan, row: Row) -> dict[str, RemoteTensor]:
        shape = (plan.turns[row.last].tokens,)
        return {
            name: RemoteTensor(_name(owner, plan, row, name), address, shape, np.dtype(dtype).name)
            for name, dtype in TENSORS.items()
        }

    return of_row


class ExportShards:
    """Puts the tensors of exports, those that are not there yet."""

    def __init__(self, shards: Shards, writer: Writer, reader: Reader, owner: Owner) -> None:
        self._shards = shards
        self._writer = writer
        self._reader = reader
        self._owner = owner

    async def put(self, granted: Grant) -> None:
        """Every tensor of the export is a shard when this returns, and lives for its lease and an hour more.

        Where it raises, the shards that it put are gone. Raises ExportGone, StoreFull, StoreBroken.
        """
        if granted.lease is None or granted.expires_in is None:
            return
        before = await self._reader.run(shard_rows.newest)
        try:
            for member in granted.members:
                plan: Plan = await self._reader.run(partial(_load, member=member, asked=granted.asked))
                await self._put(plan, lease=granted.lease, ttl=granted.expires_in + SHARDS_AFTER_LEASE)
        except Exception:
            await self._shards.take_back(lease=granted.lease, newer_than=before)
            raise

    async def _put(self, plan: Plan, *, lease: str, ttl: float) -> None:
        names = [_name(self._owner, plan, row, name) for row in plan.rows for name in TENSORS]
        there = await self._writer.run(partial(shard_rows.keep_longer, names=names, lease=lease, ttl=ttl))
        if len(there) < len(names):
            made = self._made(self._reader.run_blocking, plan, frozenset(there))
            await self._shards.put_for_lease(made, lease=lease, ttl=ttl)

    def _made(self, read: Read[Any], plan: Plan, there: Collection[str]) -> Iterator[Made]:
        for name, dtype in TENSORS.items():
            values: dict[int, Any] | None = None
            for row in plan.rows:
                shard = _name(self._owner, plan, row, name)
                if shard not in there:
                    values = values_of(read, plan, name) if values is None else values
                    tensor = tensor_of(plan, row, name, values)
                    yield shard, Form(np.dtype(dtype).name, tensor.shape), tensor.tobytes()


def _load(connection: Connection, **asked: Any) -> Plan:
    # Turns are counted within their trajectory: a rank that fetches one row need not know of the rest.
    return load_plan(connection, **asked, first_index=0)


def _name(owner: Owner, plan: Plan, row: Row, tensor: str) -> str:
    return owner.derived(TENSOR, plan.member.trajectory_id, plan.style, plan.turns[row.last].name, tensor)
