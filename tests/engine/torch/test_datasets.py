"""Trajectories of a real fleet through DataLoaders: each once, whatever the workers and ranks, and acknowledged."""

import pickle
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

import httpx
import pytest
import torch
from tests.engine.torch.keepers import Keepers
from tests.waiting import PATIENCE
from torch.utils.data import DataLoader

from rolloutfleet import Fleet, Trajectory, Whereabouts
from rolloutfleet.torch import Collated, TrajectoryDataset, collate, to_batch, to_packed

TURNS = 2


@pytest.fixture
def fleet(keepers: Keepers) -> Iterator[Fleet]:
    """Nothing is live and nothing leased, before and after."""
    where = Whereabouts.from_url(keepers.urls[0], admin_key=keepers.key)
    with Fleet(where) as made:
        check_nothing_left(made)
        yield made
        check_nothing_left(made)


def check_nothing_left(fleet: Fleet) -> None:
    audit = fleet.audit()
    assert audit.balanced and (audit.turns.live, audit.turns.leased, audit.shards.count) == (0, 0, 0)


def talked(fleet: Fleet, *, groups: int, size: int = 2) -> set[str]:
    """So many groups of closed sessions; what their trajectories are called."""
    named = set()
    for number in range(groups):
        with fleet.start_group(size, f"task-{number}") as group:
            for session in group:
                messages: list[dict[str, str]] = []
                for turn in range(TURNS):
                    messages.append({"role": "user", "content": f"Tell me of {number} and {turn}"})
                    said = httpx.post(
                        f"{session.base_url}/chat/completions",
                        headers={"authorization": f"Bearer {session.api_key}"},
                        json={"messages": messages, "max_tokens": 8 + number},
                        timeout=PATIENCE,
                    ).raise_for_status()
                    messages.append(said.json()["choices"][0]["message"])
                session.reward(float(number))
                named.add(f"{session.session_id}-trajectory-1")
    return named


def opener(fleet: Fleet) -> Any:
    return partial(Fleet, fleet.whereabouts)


def names(batches: Iterable[Collated]) -> list[str]:
    return [each.trajectory_id for each in chain.from_iterable(batch.trajectories for batch in batches)]


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_every_trajectory_comes_once_whatever_the_workers(fleet: Fleet, start: str) -> None:
    there = talked(fleet, groups=4)
    loader = DataLoader(
        TrajectoryDataset(opener(fleet), page=2),
        batch_size=3,
        num_workers=2,
        collate_fn=partial(collate, pad_to_multiple_of=16),
        multiprocessing_context=start,
    )
    batches = []
    for batch in loader:
        assert batch.batch["input_ids"].shape[0] == len(batch.trajectories)
        assert batch.batch["input_ids"].shape[1] % 16 == 0
        assert int(batch.batch["loss_mask"].sum()) >= 8 * len(batch.trajectories)
        assert batch.batch["rewarded"].all()
        fleet.acknowledge(batch.trajectories)
        batches.append(batch)
    assert sorted(names(batches)) == sorted(there)


def test_two_ranks_never_get_the_same(fleet: Fleet) -> None:
    there = talked(fleet, groups=4)
    loaders = [
        DataLoader(TrajectoryDataset(opener(fleet), page=2), batch_size=2, num_workers=1, collate_fn=collate)
        for _ in range(2)
    ]
    ranks = [iter(loader) for loader in loaders]
    got: list[list[Collated]] = [list(rank) for rank in ranks]
    assert sorted(chain(*map(names, got))) == sorted(there)
    for rank in got:
        for batch in rank:
            fleet.acknowledge(batch.trajectories)


def test_what_is_not_acknowledged_comes_again(fleet: Fleet) -> None:
    there = talked(fleet, groups=2)
    dataset = pickle.loads(pickle.dumps(TrajectoryDataset(opener(fleet))))
    first = list(dataset)
    assert {each.trajectory_id for each in first} == there
    assert fleet.audit().turns.leased == len(there) * TURNS and list(dataset) == []
    fleet.release(first)
    again = list(dataset)
    assert {each.trajectory_id for each in again} == there
    ours, theirs = (to_batch(sorted(each, key=lambda one: one.trajectory_id)) for each in (first, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    fleet.acknowledge(again)


def test_whoever_stops_early_keeps_what_was_handed_out_and_no_more(fleet: Fleet) -> None:
    there = talked(fleet, groups=3)
    iterating = iter(TrajectoryDataset(opener(fleet), page=6))
    first = next(iterating)
    iterating.close()  # type: ignore[attr-defined]
    assert fleet.audit().turns.leased == TURNS
    # By name: a group is not handed out anew while a member of it is leased.
    sessions = sorted(name.partition("-trajectory")[0] for name in there)
    rest = list(TrajectoryDataset(opener(fleet), session_ids=sessions))
    assert {each.trajectory_id for each in rest} == there - {first.trajectory_id}
    fleet.acknowledge([first, *rest])


def test_a_failure_of_who_iterates_gives_everything_back(fleet: Fleet) -> None:
    there = talked(fleet, groups=1)
    iterating = iter(TrajectoryDataset(opener(fleet)))
    next(iterating)
    with pytest.raises(ArithmeticError):
        iterating.throw(ArithmeticError())  # type: ignore[attr-defined]
    assert fleet.audit().turns.leased == 0
    rest = list(TrajectoryDataset(opener(fleet)))
    assert {each.trajectory_id for each in rest} == there
    fleet.acknowledge(rest)


def test_a_count_is_shared_out_among_workers(fleet: Fleet) -> None:
    talked(fleet, groups=8, size=1)
    loader = DataLoader(
        TrajectoryDataset(opener(fleet), count=5, page=1, timeout=PATIENCE),
        batch_size=1,
        num_workers=2,
        collate_fn=collate,
    )
    batches = list(loader)
    assert len(set(names(batches))) == len(batches) == 5
    for batch in batches:
        fleet.acknowledge(batch.trajectories)
    fleet.acknowledge(list(TrajectoryDataset(opener(fleet))))


def test_packed_rows_are_those_of_the_export(fleet: Fleet) -> None:
    talked(fleet, groups=2)
    got: list[Trajectory] = list(TrajectoryDataset(opener(fleet)))
    packed = collate(got, packed=True, pad_to_multiple_of=8)
    rows = [row for trajectory in got for row in trajectory.rows]
    assert packed.batch["cu_seqlens"].diff()[: len(rows)].tolist() == [row.tokens for row in rows]
    assert packed.trajectories[0].rows == () and packed.trajectories[0].lease_id == got[0].lease_id
    fleet.acknowledge(packed.trajectories)


def test_shards_are_fetched_packed_and_given_back(fleet: Fleet, keepers: Keepers) -> None:
    talked(fleet, groups=2)
    away: list[Trajectory] = list(TrajectoryDataset(opener(fleet), as_="shards"))
    with keepers.tensors() as tensors:
        with pytest.raises(TypeError, match="localize"):
            to_batch(away)
        here = tensors.localize(away)
        batch = to_packed(here)
        assert int(batch["loss_mask"].sum()) > 0 and len(batch["rewards"]) == len(away)
        # Leases end before shards do; both are the trainer's to say.
        fleet.acknowledge(away)
        assert tensors.clear_batches(away).complete


@pytest.mark.parametrize("options", [{"count": 0}, {"on_exit": "acknowledge"}], ids=str)
def test_what_can_not_be_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        TrajectoryDataset(Fleet.from_file, **options)
