"""Four processes of torch.distributed give shards back together: no rank keeps any, and no proxy."""

import json
import subprocess
import sys
from dataclasses import asdict
from typing import Any

import httpx
import pytest
from tests.engine.torch.keepers import Keepers
from tests.engine.torch.ranks import WORLD
from tests.waiting import PATIENCE

EMPTY = {"entries": 0, "bytes": 0}
SECONDS = 480


@pytest.fixture(scope="module")
def seen(keepers: Keepers, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each rank saw."""
    folder = tmp_path_factory.mktemp("ranks")
    ranks = []
    for rank in range(WORLD):
        command = [
            sys.executable,
            "-m",
            "tests.engine.torch.ranks",
            str(rank),
            str(folder),
            json.dumps(asdict(keepers)),
        ]
        with (folder / f"rank-{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(SECONDS) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    assert codes == [0] * (WORLD - 1) + [9], "\n".join(file.read_text() for file in sorted(folder.glob("*.log")))
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(WORLD)]


def of(seen: list[dict[str, Any]], act: str, name: str) -> list[Any]:
    return [rank[act][name] for rank in seen]


@pytest.mark.timeout(SECONDS + 30)
def test_the_head_names_the_shards_and_every_rank_of_the_grid_forgets_them(seen: list[dict[str, Any]]) -> None:
    act = "head_alone_has_the_data"
    assert of(seen, act, "fetched") == [[0, 1, 2, 3, 4, 5]] * WORLD
    assert of(seen, act, "left") == [EMPTY] * WORLD
    assert of(seen, act, "deleted") == [6, 0, 0, 0]
    assert [len(ids) for ids in of(seen, act, "ids")] == [6] * WORLD
    assert of(seen, act, "staying") == [{}] * WORLD and of(seen, act, "said") == [[]] * WORLD


def test_without_groups_the_default_one_is_used(seen: list[dict[str, Any]]) -> None:
    assert of(seen, "head_alone_without_groups", "left") == [EMPTY] * WORLD
    assert of(seen, "head_alone_without_groups", "deleted") == [3, 0, 0, 0]


def test_of_ranks_that_name_the_same_one_deletes(seen: list[dict[str, Any]]) -> None:
    act = "every_data_head_has_its_own"
    assert of(seen, act, "deleted") == [4, 0, 4, 0]
    assert [len(ids) for ids in of(seen, act, "ids")] == [8] * WORLD
    assert of(seen, act, "left") == [EMPTY] * WORLD


def test_ids_are_passed_on_through_groups_that_overlap(seen: list[dict[str, Any]]) -> None:
    assert of(seen, "pipeline_of_four", "left") == [EMPTY] * WORLD
    assert of(seen, "pipeline_of_four", "deleted") == [0, 0, 0, 3]


def test_nothing_named_clears_nothing(seen: list[dict[str, Any]]) -> None:
    assert [left["entries"] for left in of(seen, "nothing_is_named", "left")] == [2] * WORLD
    assert of(seen, "nothing_is_named", "deleted") == [0] * WORLD
    assert of(seen, "nothing_is_named", "ids") == [[]] * WORLD


def test_what_stays_anywhere_is_told_everywhere(seen: list[dict[str, Any]]) -> None:
    act = "something_stays"
    assert of(seen, act, "staying") == [{"rank 3": {"entries": 1, "bytes": 800}}] * WORLD
    assert (
        of(seen, act, "stats")
        == [{f"rank {rank}": EMPTY for rank in range(3)} | {"rank 3": {"entries": 1, "bytes": 800}}] * WORLD
    )
    [*others, last] = of(seen, act, "said")
    assert others == [[]] * (WORLD - 1) and "rank 3: 1" in last[0]


def test_a_look_that_fails_is_never_raised(seen: list[dict[str, Any]]) -> None:
    act = "a_look_fails"
    assert of(seen, act, "complete") == [True] * WORLD
    assert [len(said) for said in of(seen, act, "said")] == [0, 1, 0, 0] and "can't look" in seen[1][act]["said"][0]


def test_no_rank_clears_before_the_owners_have_let_go(seen: list[dict[str, Any]]) -> None:
    assert [rank["a_fetch_behind_the_clear"] for rank in seen] == [True] * WORLD
    assert of(seen, "a_thread_goes_on_fetching", "left") == [EMPTY] * WORLD
    assert seen[-1]["a_thread_goes_on_fetching"]["ended"]


def test_a_rank_that_is_gone_costs_the_proxies_nothing(seen: list[dict[str, Any]], keepers: Keepers) -> None:
    assert [rank["a_rank_dies"]["raised"] for rank in seen[:-1]] == [True] * 3
    assert seen[0]["a_rank_dies"]["left"] == EMPTY
    for url in keepers.urls:
        audit = httpx.get(f"{url}/audit", headers={"authorization": f"Bearer {keepers.key}"}, timeout=PATIENCE).json()
        assert audit["shards"] == {"count": 0, "bytes": 0, "orphans": 0}
