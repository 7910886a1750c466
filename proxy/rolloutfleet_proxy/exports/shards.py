"""An export's tensors as shards: one for each tensor of each row, so that a trainer's ranks fetch their own rows alone.

Their names follow from the trajectory, the style, the row's last turn and the tensor's name. Nothing else decides what
they hold: turns never change, a trajectory's are fixed when it closes, and returns are numbers of the answer, not
tensors. So the same export, made again for whatever reason, finds what it put before.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
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
from rolloutfleet_proxy.store.store import Read, Store


def references(owner: Owner, address: str) -> References:
    """What makes the references to a row's tensors; `address` is where their owner is reached."""

    def of_row(plan: Plan, row: Row) -> dict[str, RemoteTensor]:
        shape = (plan.turns[row.last].tokens,)
        return {
            name: RemoteTensor(_name(owner, plan, row, name), address, shape, np.dtype(dtype).name)
            for name, dtype in TENSORS.items()
        }

    return of_row


@dataclass(frozen=True, slots=True)
class ExportShards:
    """Puts the tensors of exports, those that are not there yet."""

    shards: Shards
    store: Store

    async def put(self, granted: Grant) -> None:
        """Every tensor of the export is a shard when this returns, and lives for its lease and an hour more.

        Where it raises, the shards that it put are gone. Raises ExportGone, DiskError.
        """
        if granted.lease is None or granted.expires_in is None:
            return
        before = await self.store.read(shard_rows.newest)
        try:
            for member in granted.members:
                # Turns are counted within their trajectory: a rank that fetches one row need not know of the rest.
                load = partial(load_plan, member=member, asked=granted.asked, first_index=0)
                plan = await self.store.read(load)
                await self._put(plan, lease=granted.lease, ttl=granted.expires_in + SHARDS_AFTER_LEASE)
        except Exception:
            await self.shards.take_back(lease=granted.lease, newer_than=before)
            raise

    async def _put(self, plan: Plan, *, lease: str, ttl: float) -> None:
        names = [_name(self.store.owner, plan, row, name) for row in plan.rows for name in TENSORS]
        there = await self.store.write(partial(shard_rows.keep_longer, names=names, lease=lease, ttl=ttl))
        if len(there) < len(names):
            made = self._made(self.store.reader.run_blocking, plan, frozenset(there))
            await self.shards.put_for_lease(made, lease=lease, ttl=ttl)

    def _made(self, read: Read[Any], plan: Plan, there: Collection[str]) -> Iterator[Made]:
        for name, dtype in TENSORS.items():
            values: dict[int, Any] | None = None
            for row in plan.rows:
                shard = _name(self.store.owner, plan, row, name)
                if shard not in there:
                    values = values_of(read, plan, name) if values is None else values
                    tensor = tensor_of(plan, row, name, values)
                    yield shard, Form(np.dtype(dtype).name, tensor.shape), tensor.tobytes()


def _name(owner: Owner, plan: Plan, row: Row, tensor: str) -> str:
    return owner.derived(TENSOR, plan.member.trajectory_id, plan.style, plan.turns[row.last].name, tensor)
