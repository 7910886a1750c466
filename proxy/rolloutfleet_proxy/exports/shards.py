"""An export's tensors as shards: one for each tensor of each row, so that a trainer's ranks fetch their own rows alone.

Their names follow from the trajectory, the style, the lineages that are not trained, whether any of it is, the row's
last turn and the tensor's name. Nothing else decides what they hold: turns never change, a trajectory's are fixed when
it closes, and returns are numbers of the answer, not tensors. So the same export, made again for whatever reason, finds
what it put before.
"""

from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from rolloutfleet.tensors import Form, RemoteTensor
from rolloutfleet_proxy.exports.forms import Plan, References, tensor_of, values_of
from rolloutfleet_proxy.exports.rows import TENSORS, Row
from rolloutfleet_proxy.ids import TENSOR, Owner
from rolloutfleet_proxy.shards.files import Made
from rolloutfleet_proxy.store.store import Read


def references(owner: Owner, address: str) -> References:
    """What makes the references to a row's tensors; `address` is where their owner is reached."""

    def of_row(plan: Plan, row: Row) -> dict[str, RemoteTensor]:
        shape = (plan.turns[row.last].tokens,)
        return {
            name: RemoteTensor(_name(owner, plan, row, name), address, shape, np.dtype(dtype).name)
            for name, dtype in TENSORS.items()
        }

    return of_row


def names(owner: Owner, plan: Plan) -> list[str]:
    """Of all shards that an export makes of a trajectory."""
    return [_name(owner, plan, row, name) for row in plan.rows for name in TENSORS]


def missing(owner: Owner, read: Read[Any], plan: Plan, there: Collection[str]) -> Iterator[Made]:
    """Those of them that are not there yet; for a worker thread."""
    for name, dtype in TENSORS.items():
        values: dict[int, Any] | None = None
        for row in plan.rows:
            shard = _name(owner, plan, row, name)
            if shard not in there:
                values = values_of(read, plan, name) if values is None else values
                tensor = tensor_of(plan, row, name, values)
                yield shard, Form(np.dtype(dtype).name, tensor.shape), tensor.tobytes()


def _name(owner: Owner, plan: Plan, row: Row, tensor: str) -> str:
    said = ",".join([plan.style, *sorted(plan.context), *([] if plan.trained else ["untrained"])])
    return owner.derived(TENSOR, plan.member.trajectory_id, said, plan.turns[row.last].name, tensor)
