"""A dataset over an export: trajectories as they become ready, for DataLoaders with any number of workers and ranks.

A lease is exclusive, so that no two workers and no two ranks ever get the same trajectory: each process opens a fleet
of its own and leases for itself. What is handed out stays leased until the trainer, in its own
process, acknowledges it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch.utils.data import IterableDataset, get_worker_info

from rolloutfleet.fleet import Fleet, Trajectory
from rolloutfleet.torch.batches import to_batch, to_packed


class Collated(NamedTuple):
    """A batch, and what to acknowledge once it is trained."""

    batch: dict[str, torch.Tensor]
    """As `to_batch` or `to_packed` makes it."""
    trajectories: list[Trajectory]
    """What is in it, less turns and rows, for `Fleet.acknowledge`."""


class TrajectoryDataset(IterableDataset):  # type: ignore[misc]
    """Trajectories, one by one; each iteration leases anew.

    `open_fleet` makes a fleet in the process that iterates, a worker of a DataLoader or this one; it must be picklable
    where workers are spawned: `partial(Fleet, fleet.whereabouts)`. `options` are those of `Fleet.export`. `count` is of
    this rank, and shared out among its workers, each of which finishes the group that it is at; without it an iteration
    ends when nothing is ready.

    Leases are renewed while a worker iterates, and last for `lease_seconds` after that; what is not acknowledged by
    then is handed out again, under the same ids. Raises ValueError for a count below 1, and for `on_exit`.
    """

    def __init__(self, open_fleet: Callable[[], Fleet], *, count: int | None = None, **options: Any) -> None:
        super().__init__()
        if count is not None and count < 1:
            raise ValueError(f"count is {count}; it must be at least 1")
        if "on_exit" in options:
            raise ValueError("on_exit can't be chosen here: what is handed out stays leased until it is acknowledged")
        self._open_fleet = open_fleet
        self._count = count
        self._options = options

    def __iter__(self) -> Iterator[Trajectory]:
        count = None if self._count is None else _share(self._count)
        if count == 0:
            return
        with self._open_fleet() as fleet, fleet.export(count, on_exit="keep", **self._options) as export:
            try:
                yield from export
            except GeneratorExit:
                # Whoever iterates has enough: no failure, which would give back what is being trained on.
                return


def collate(
    trajectories: Sequence[Trajectory], *, pad_to_multiple_of: int = 1, pad_token_id: int = 0, packed: bool = False
) -> Collated:
    """The `collate_fn` of a DataLoader over a TrajectoryDataset. With `packed`, as `to_packed` makes a batch."""
    make = to_packed if packed else to_batch
    batch = make(trajectories, pad_to_multiple_of=pad_to_multiple_of, pad_token_id=pad_token_id)
    return Collated(batch, [replace(trajectory, turns=(), rows=()) for trajectory in trajectories])


def _share(count: int) -> int:
    """What this worker brings of it."""
    worker = get_worker_info()
    if worker is None:
        return count
    return int(count // worker.num_workers + (worker.id < count % worker.num_workers))
