"""Trajectories and rows as training takes them: those of `Fleet.export`, or anything like them."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from rolloutfleet.tensors import RemoteTensor


class RowLike(Protocol):
    """One sequence, with tensors by name, each [tokens]."""

    @property
    def reward(self) -> float | None: ...

    @property
    def tensors(self) -> Mapping[str, Any]: ...


class TrajectoryLike(Protocol):
    """A trajectory that `rolloutfleet.Fleet.export` hands out, or anything like it."""

    @property
    def trajectory_id(self) -> str: ...

    @property
    def group_id(self) -> str: ...

    @property
    def rows(self) -> Sequence[RowLike]: ...


def tensor_of(row: RowLike, name: str, *, whose: str) -> Any:
    """A row's tensor, of whatever library. `whose` names the trajectory in errors.

    Raises ValueError where the row has none of that name, TypeError where it is a reference to a shard.
    """
    values = row.tensors.get(name)
    if values is None:
        raise ValueError(f"a row of {whose} has no {name}; it has {', '.join(row.tensors) or 'nothing'}")
    if isinstance(values, RemoteTensor):
        raise TypeError(f"{name} of {whose} is a reference: fetch all first, with RemoteTensors.localize(trajectories)")
    return values


def check_together(columns: Mapping[str, Any], *, whose: str) -> None:
    """Raises ValueError where tensors of one row have more than one dimension, or differ in length."""
    for name, values in columns.items():
        if values.ndim != 1:
            raise ValueError(f"{name} of {whose} is {list(values.shape)}; it must be [tokens]")
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"the tensors of a row of {whose} differ in length: {lengths}")
