"""Giving shards back on all ranks of torch.distributed together.

Every rank calls, those that hold batches with them and the others with nothing. The ids go round through the process
groups that are passed, one after the other: ranks that share no group with a head get them by way of one that does, as
the ranks of a grid do along its tensor and then its pipeline dimension.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import torch.distributed as dist

from rolloutfleet.remote_tensors import clearing
from rolloutfleet.remote_tensors.clearing import LOG, Cleared, DeleteReport
from rolloutfleet.remote_tensors.client import RemoteTensors, references_in
from rolloutfleet.tensors import RemoteTensor

Groups = Sequence[Any] | Mapping[str, Any] | None

OUTSIDE: Final = -1


def clear_batches(tensors: RemoteTensors, *batches: Any, groups: Groups = None) -> Cleared:
    """Give back all shards that any rank names: at their owners, and in the fetch buffer of every rank.

    `groups` are process groups, in a sequence or by the name of their role; the default group unless passed. All ranks
    pass the same ones in the same order; a group that a rank is not in is passed over. The groups must connect every
    rank with those that name shards, one after the other. With nccl alone, make a gloo group for this.

    Each shard is deleted by the lowest rank that names it, and no rank clears before the owners have answered. The
    answer holds the ids of all ranks, what this rank deleted, and the buffers that are not empty afterwards, of the
    ranks that share a group with this one. What was not deleted is asked for again at the next call. Nothing named
    anywhere clears nothing.

    Raises what torch.distributed raises where a rank is gone; this rank has then deleted what it named, and cleared it.
    """
    named = references_in(batches)
    through = _members(groups)
    try:
        first = _spread({reference: dist.get_rank() for reference in named}, through)
    except Exception:
        # Training can't go on without that rank; the storage of the proxies must not pay for it.
        _delete(tensors, named)
        tensors.clear_fetch_buffer(reference.shard_id for reference in named)
        raise
    mine = [reference for reference in named if first[reference] == dist.get_rank()]
    ids = tuple(dict.fromkeys(reference.shard_id for reference in first))
    try:
        deleted = _delete(tensors, mine)
        # Ranks wait here for the owners' answers, so that none fetches anew what it has cleared.
        for group in through:
            _gathered(None, group)
    finally:
        tensors.clear_fetch_buffer(ids)
    return Cleared(ids, deleted, staying=_staying(tensors, through))


def fetch_buffer_stats(tensors: RemoteTensors, *, groups: Groups = None) -> dict[str, Mapping[str, int]]:
    """`{"entries", "bytes"}` of each rank that shares a group with this one, by `rank N`. All ranks call it."""
    return _all_stats(tensors, _members(groups))


def _members(groups: Groups) -> list[Any]:
    """The groups that this rank is in."""
    if groups is None:
        return [dist.group.WORLD]
    each: Iterable[Any] = groups.values() if isinstance(groups, Mapping) else groups
    return [group for group in each if group is not None and dist.get_rank(group) != OUTSIDE]


def _spread(first: dict[RemoteTensor, int], groups: Sequence[Any]) -> dict[RemoteTensor, int]:
    """What all ranks name, with the lowest rank that names it."""
    for group in groups:
        merged: dict[RemoteTensor, int] = {}
        for theirs in _gathered(first, group):
            for reference, rank in theirs.items():
                merged[reference] = min(rank, merged.get(reference, rank))
        first = merged
    return first


def _gathered(value: Any, group: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(found, value, group=group)
    return found


def _delete(tensors: RemoteTensors, references: Sequence[RemoteTensor]) -> DeleteReport:
    if not references and not tensors.undeleted:
        return DeleteReport()
    try:
        return tensors.delete(references)
    except Exception as error:
        # The other ranks wait for this one.
        LOG.warning("%d shards were not deleted: %s: %s", len(references), type(error).__name__, error)
        return DeleteReport(undeleted=tuple(references), failures={"": f"{type(error).__name__}: {error}"})


def _staying(tensors: RemoteTensors, groups: Sequence[Any]) -> dict[str, Mapping[str, int]]:
    """The look after a clear. Whatever goes wrong with it, training goes on."""
    try:
        found = _all_stats(tensors, groups)
        own = f"rank {dist.get_rank()}"
        clearing.staying({own: found.get(own, {})})
        return {name: stats for name, stats in found.items() if stats.get("entries")}
    except Exception as error:
        LOG.warning("the fetch buffers of the ranks could not be looked at: %s: %s", type(error).__name__, error)
        return {}


def _all_stats(tensors: RemoteTensors, groups: Sequence[Any]) -> dict[str, Mapping[str, int]]:
    found: dict[str, Mapping[str, int]] = {}
    for group in groups:
        for stats in _gathered(_own_stats(tensors), group):
            found |= stats
    return dict(sorted(found.items()))


def _own_stats(tensors: RemoteTensors) -> dict[str, Mapping[str, int]]:
    """Also where looking fails, there is something to gather, and the other ranks do not wait."""
    try:
        return {f"rank {dist.get_rank()}": tensors.buffer_stats()}
    except Exception as error:
        LOG.warning("this rank's fetch buffer could not be looked at: %s: %s", type(error).__name__, error)
        return {}
