"""One rank of four, 2 data by 2 tensor, that trains step after step; run by steps.py, a process each.

The head leases a trajectory as shards and puts a step's images; all ranks fetch both; all clear; the head acknowledges.
Memory after every step goes to a file. Asked to, the last rank dies in the last step: the head acknowledges nothing.
"""

import gc
import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import torch
import torch.distributed as dist
from tests.engine.torch.steps import LEASE_SECONDS, WORLD
from tests.waiting import PATIENCE, until

from rolloutfleet import Fleet, Whereabouts
from rolloutfleet.fleet import Session
from rolloutfleet.remote_tensors import RemoteTensors, fetch_buffer_stats
from rolloutfleet.torch import clear_batches, to_packed
from rolloutfleet_proxy.process.allocator import find_trim

HEAD = 0
IMAGES = 10


def main() -> None:
    rank, folder, asked = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=WORLD,
        timeout=timedelta(seconds=300),
    )
    grid = [_mine(rank, [[0, 1], [2, 3]]), _mine(rank, [[0, 2], [1, 3]])]
    where = Whereabouts.from_url(asked["urls"][0], admin_key=asked["key"])
    with Fleet(where) as fleet, RemoteTensors(asked["urls"], asked["key"]) as tensors:
        memory = []
        for step in range(asked["steps"]):
            last = step == asked["steps"] - 1
            held: list[Any] = [_step(fleet, tensors, asked["bytes"]) if rank == HEAD else None]
            dist.broadcast_object_list(held, src=HEAD)
            trajectories, images = held[0]
            tokens = int(to_packed(tensors.localize(trajectories))["loss_mask"].sum())
            seen = sum(int(image[-1]) for image in tensors.localize(images))
            assert tokens > 0 and seen == sum(range(IMAGES))
            if last and asked["dies"]:
                _die(rank, tensors, held)
            done = clear_batches(tensors, *([held] if rank == HEAD else []), groups=grid)
            if rank == HEAD:
                fleet.acknowledge(trajectories)
            assert done.complete and done.staying == {} and fetch_buffer_stats()["entries"] == 0
            memory.append(_resident())
            _write(folder / f"rank-{rank}.json", memory)
        dist.barrier()


def _mine(rank: int, groups: list[list[int]]) -> Any:
    """This rank's group; every rank makes all of them."""
    made = [dist.new_group(group) for group in groups]
    return next(each for each, group in zip(made, groups, strict=True) if rank in group)


def _step(fleet: Fleet, tensors: RemoteTensors, nbytes: int) -> Any:
    """A trajectory, newly made or left over by a trainer that died, and the step's images."""
    with fleet.start_session() as session:
        _talk(session)
    with fleet.export(as_="shards", on_exit="keep", lease_seconds=LEASE_SECONDS, grace=120) as export:
        trajectories = list(export)
    images = [torch.full((nbytes // IMAGES,), number, dtype=torch.uint8) for number in range(IMAGES)]
    return trajectories, tensors.remotize(images)


def _talk(session: Session) -> None:
    """One turn. A proxy's worker may be killed under the call, which is then made again."""

    def answered() -> bool:
        try:
            httpx.post(
                f"{session.base_url}/chat/completions",
                headers={"authorization": f"Bearer {session.api_key}", "idempotency-key": "the turn"},
                json={"messages": [{"role": "user", "content": "Tell me of it"}], "max_tokens": 16},
                timeout=PATIENCE,
            ).raise_for_status()
        except httpx.TransportError:
            return False
        return True

    until(answered)


def _die(rank: int, tensors: RemoteTensors, held: list[Any]) -> None:
    # Where the last rank is gone, the head gives back its shards at once: by then all have fetched them.
    dist.barrier()
    if rank == WORLD - 1:
        os._exit(9)
    try:
        clear_batches(tensors, *([held] if rank == HEAD else []))
    except RuntimeError:
        # As a trainer that is killed: without a word to anybody.
        os._exit(3)


def _write(file: Path, memory: list[int]) -> None:
    """Whole at every moment: it is read meanwhile."""
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps(memory))
    draft.replace(file)


def _resident() -> int:
    """Bytes that are held. What Python or the allocator would give back later is given back first: it comes to 12 MB,
    by chance, and does not grow."""
    gc.collect()
    if (trim := find_trim()) is not None:
        trim()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
