"""One rank of four, 2 data by 2 tensor, as a trainer has them; run by test_ranks.py, a process each.

What it saw goes to a JSON file: one entry for each act of the play.
"""

import json
import logging
import os
import sys
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from tests.waiting import PATIENCE, until

from rolloutfleet.remote_tensors import RemoteTensors, ShardsMissing, fetch_buffer_stats
from rolloutfleet.torch import clear_batches
from rolloutfleet.torch import fetch_buffer_stats as stats_of_all

WORLD = 4
HEAD = 0
FETCHES = 2_000
"""Which a thread makes while an owner is slow to let go."""


class Rank:
    """This rank, its groups, and what it has to tell."""

    def __init__(self, rank: int, folder: Path, urls: list[str], key: str) -> None:
        self.rank = rank
        self.folder = folder
        self.tensors = RemoteTensors(urls, key)
        self.log: list[str] = []
        logging.getLogger("rolloutfleet.remote_tensors").addHandler(_Listener(self.log))
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder / 'rendezvous'}",
            rank=rank,
            world_size=WORLD,
            timeout=timedelta(seconds=120),
        )
        # Rank = 2 * data + tensor. Every rank makes every group; it is in one of each kind.
        tensor = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        data = [dist.new_group([0, 2]), dist.new_group([1, 3])]
        self.grid = {"tensor": tensor[rank // 2], "data": data[rank % 2]}

    def put(self, count: int, *, size: int = 100) -> list[Any]:
        return [self.tensors.put(torch.full((size,), number)) for number in range(count)]

    def given(self, value: Any, source: int = HEAD) -> Any:
        """What the source has, on every rank."""
        held = [value]
        dist.broadcast_object_list(held, src=source)
        return held[0]

    def fetch(self, references: list[Any]) -> list[int]:
        return [int(tensor[0]) for tensor in self.tensors.fetch(references)]

    def seen(self, done: Any) -> dict[str, Any]:
        """What a clear answered, and what is left here."""
        said, self.log[:] = list(self.log), []
        return {
            "ids": sorted(done.ids),
            "deleted": done.deleted.shards,
            "complete": done.complete,
            "staying": dict(done.staying),
            "left": fetch_buffer_stats(),
            "said": said,
        }


class _Listener(logging.Handler):
    def __init__(self, log: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.append(record.getMessage())


def head_alone_has_the_data(rank: Rank) -> Any:
    """The head takes a batch, all fetch it, and the head alone says what is to go."""
    references = rank.given(rank.put(6) if rank.rank == HEAD else None)
    fetched = rank.fetch(references)
    batches = [{"batch": references}, references[:2]] if rank.rank == HEAD else []
    return {"fetched": fetched, **rank.seen(clear_batches(rank.tensors, *batches, groups=rank.grid))}


def head_alone_without_groups(rank: Rank) -> Any:
    """The same through the default group."""
    references = rank.given(rank.put(3) if rank.rank == HEAD else None)
    rank.fetch(references)
    return rank.seen(clear_batches(rank.tensors, *([references] if rank.rank == HEAD else [])))


def every_data_head_has_its_own(rank: Rank) -> Any:
    """Two heads name what is theirs, and their tensor ranks the same once more."""
    lead = rank.rank - rank.rank % 2
    own = rank.put(4) if rank.rank == lead else None
    held = {source: rank.given(own, source) for source in (0, 2)}
    rank.fetch(held[lead])
    return rank.seen(clear_batches(rank.tensors, held[lead], groups=list(rank.grid.values())))


def pipeline_of_four(rank: Rank) -> Any:
    """Pairs that overlap, as stages of a pipeline do, pass the ids on one to the next; the last stage has the data."""
    pairs = [dist.new_group([stage, stage + 1]) for stage in (2, 1, 0)]
    back = [dist.new_group([stage, stage + 1]) for stage in (1, 2)]
    references = rank.given(rank.put(3) if rank.rank == 3 else None, 3)
    rank.fetch(references)
    batches = [references] if rank.rank == 3 else []
    return rank.seen(clear_batches(rank.tensors, *batches, groups=[*pairs, *back]))


def nothing_is_named(rank: Rank) -> Any:
    references = rank.given(rank.put(2) if rank.rank == HEAD else None)
    rank.fetch(references)
    first = rank.seen(clear_batches(rank.tensors, groups=rank.grid))
    rank.seen(clear_batches(rank.tensors, references))
    return first


def something_stays(rank: Rank) -> Any:
    """Rank 3 has fetched what nobody names."""
    references, other = rank.given((rank.put(2), rank.put(1)) if rank.rank == HEAD else None)
    rank.fetch(references + (other if rank.rank == 3 else []))
    seen = rank.seen(clear_batches(rank.tensors, *([references] if rank.rank == HEAD else [])))
    seen["stats"] = stats_of_all(rank.tensors)
    rank.seen(clear_batches(rank.tensors, other))
    return seen


def a_look_fails(rank: Rank) -> Any:
    """Rank 1 can't look into its buffer."""

    def broken() -> dict[str, int]:
        raise OSError("can't look")

    references = rank.given(rank.put(2) if rank.rank == HEAD else None)
    rank.fetch(references)
    if rank.rank == 1:
        rank.tensors.buffer_stats = broken  # type: ignore[method-assign]
    try:
        return rank.seen(clear_batches(rank.tensors, references))
    finally:
        if rank.rank == 1:
            del rank.tensors.buffer_stats


def a_fetch_behind_the_clear(rank: Rank) -> Any:
    """Whoever fetches after its own clear finds that the owner has let go."""
    references = rank.given(rank.put(2) if rank.rank == HEAD else None)
    clear_batches(rank.tensors, references, groups=rank.grid)
    try:
        return rank.fetch(references)
    except ShardsMissing as missing:
        return set(missing.ids) <= {reference.shard_id for reference in references}


def a_thread_goes_on_fetching(rank: Rank) -> Any:
    """The head's owners are slow to let go, and a thread of the last rank fetches all the while."""
    references = rank.given(rank.put(1) if rank.rank == HEAD else None)
    deleting, go = rank.folder / "deleting", rank.folder / "go"

    def fetch_until_it_is_gone() -> None:
        fetches = 0
        while True:
            try:
                rank.fetch(references)
            except ShardsMissing:
                return
            fetches += deleting.exists()
            if fetches == FETCHES:
                go.touch()

    def slowly(references: Any) -> Any:
        deleting.touch()
        until(go.exists)
        return delete(references)

    delete = rank.tensors.delete
    if rank.rank == HEAD:
        rank.tensors.delete = slowly  # type: ignore[method-assign]
    fetching = threading.Thread(target=fetch_until_it_is_gone, daemon=True)
    if rank.rank == WORLD - 1:
        fetching.start()
    seen = rank.seen(clear_batches(rank.tensors, *([references] if rank.rank == HEAD else []), groups=rank.grid))
    if rank.rank == WORLD - 1:
        fetching.join(PATIENCE)
        seen |= {"ended": not fetching.is_alive(), "left": fetch_buffer_stats()}
    rank.tensors.delete = delete  # type: ignore[method-assign]
    return seen


def a_rank_dies(rank: Rank) -> Any:
    """The last rank is gone when the others clear: they say so, and the head's shards are freed all the same."""
    references = rank.given(rank.put(5) if rank.rank == HEAD else None)
    rank.fetch(references)
    dist.barrier()
    if rank.rank == WORLD - 1:
        os._exit(9)
    try:
        clear_batches(rank.tensors, *([references] if rank.rank == HEAD else []))
    except RuntimeError:
        return {"raised": True, "left": fetch_buffer_stats()}
    return {"raised": False}


ACTS = (
    head_alone_has_the_data,
    head_alone_without_groups,
    every_data_head_has_its_own,
    pipeline_of_four,
    nothing_is_named,
    something_stays,
    a_look_fails,
    a_fetch_behind_the_clear,
    a_thread_goes_on_fetching,
    a_rank_dies,
)


def main() -> None:
    number, folder, proxies = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    rank = Rank(number, folder, **proxies)
    seen: dict[str, Any] = {}
    for act in ACTS:
        seen[act.__name__] = act(rank)
        (folder / f"rank-{number}.json").write_text(json.dumps(seen))
    # With a rank gone, there is nobody to take leave of.
    os._exit(0)


if __name__ == "__main__":
    main()
