"""Trajectories as torch tensors, a dataset over an export, and clearing shards on all ranks together.

Importing this needs PyTorch (`pip install torch`) and says so where it is missing; nothing else of
`rolloutfleet` does. docs/torch.md explains it.
"""

from rolloutfleet.remote_tensors.arrays import import_torch

import_torch()

from rolloutfleet.torch.batches import to_batch, to_packed  # noqa: E402
from rolloutfleet.torch.datasets import Collated, TrajectoryDataset, collate  # noqa: E402
from rolloutfleet.torch.distributed import clear_batches, fetch_buffer_stats  # noqa: E402

__all__ = ["Collated", "TrajectoryDataset", "clear_batches", "collate", "fetch_buffer_stats", "to_batch", "to_packed"]
