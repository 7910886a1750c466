"""The committed comparison with trainers' own classes (`make trainers`), and the parts of it that need no trainer."""

import json
import pkgutil
import re
from typing import Any

import pytest
from examples.trainers.classes.__main__ import ENVIRONMENTS, FORMATS, LOCKS, RESULT, packages_of
from examples.trainers.classes.compared import bits, compared, native
from examples.trainers.classes.rollouts import NAMED, fixed
from examples.trainers.classes.source import definitions
from tests.paths import ROOT
from toolchain.cache import digest_of

from rolloutfleet import formats

FOUND = json.loads(RESULT.read_text())
OF_NO_TRAINER = {"cut", "rollouts", "episodes"}


def test_the_result_names_each_trainers_module_once() -> None:
    trainers = {module.name for module in pkgutil.iter_modules(formats.__path__)} - OF_NO_TRAINER
    assert sorted([*(each["module"] for each in FOUND["compared"]), *FOUND["not_compared"]]) == sorted(trainers)
    assert all(FOUND["not_compared"].values())


@pytest.mark.parametrize("found", FOUND["compared"], ids=lambda found: found["module"])
def test_the_result_is_of_the_packages_that_are_locked(found: dict[str, Any]) -> None:
    lock = (LOCKS / f"{ENVIRONMENTS[found['module']]}.lock").read_text()
    assert sorted(found["packages"]) == sorted(packages_of(found["module"]))
    for package, version in found["packages"].items():
        assert f"\n{package}=={version} \\\n" in lock, "make trainers"


@pytest.mark.parametrize("found", FOUND["compared"], ids=lambda found: found["module"])
def test_the_result_has_each_row_of_the_rollouts_to_the_bit(found: dict[str, int]) -> None:
    assert found["rollouts"] == len(fixed())
    assert found["equal"] == found["rows"] > found["rollouts"] > found["empty"] > 0
    assert found["beyond"] == 0


def test_the_page_has_the_figures_of_the_result() -> None:
    (page,) = re.findall(r"\*\*Tried\.\*\*.*?\n\n", (ROOT / "docs" / "trainers.md").read_text(), re.DOTALL)
    figures = [FOUND["compared"][0]["rollouts"], *(each["rows"] for each in FOUND["compared"])]
    assert [int(each) for each in re.findall(r"(?:converts|all) (\d+)", page)] == figures


def test_the_result_is_of_the_formats_that_are_here() -> None:
    assert FOUND["formats"] == digest_of(FORMATS), "make trainers"


def test_rollouts_are_the_same_each_time() -> None:
    one, other = ([native(rollout) for rollout in fixed()] for _ in range(2))
    assert one == other


def test_rollouts_of_which_nothing_is_trained_are_among_them() -> None:
    empty = {name for name, rollout in NAMED.items() if not native(rollout)}
    assert empty == {"failed", "without a turn"}
    assert {name for name, rollout in NAMED.items() if len(native(rollout)) > 1} >= {"several trajectories"}
    assert len(NAMED["several trajectories"]) == 3


def test_compared_counts_rows_that_differ_lack_or_are_too_many() -> None:
    rollout = NAMED["a sub-agent and a compaction"]
    first, *others = rows = native(rollout)
    assert len(rows) == 3
    assert compared([rollout], [rows], [rows[::-1]]).holds
    changed = (*first[:2], bytes(len(first[2])), *first[3:])
    for had, equal, beyond in (
        ([changed, *others], 2, 1),
        (others, 2, 0),
        ([*rows, first], 3, 1),
        ([], 0, 0),
    ):
        found = compared([rollout], [rows], [had])
        assert (found.rows, found.equal, found.beyond, found.holds) == (3, equal, beyond, False)
    assert not compared([rollout], [[]], [[]]).holds


def test_bits_tell_no_reward_from_a_reward_of_zero() -> None:
    columns = [[1, 2], [0, 1], [0.0, -0.5], [-1, 3]]
    assert bits(columns, None) != bits(columns, 0.0)
    assert bits(columns, 0.0) != bits([*columns[:2], [-0.0, -0.5], columns[3]], 0.0)


def test_definitions_are_executed_without_their_module() -> None:
    made = definitions("pydantic", "pydantic/version.py", ("version_short",), VERSION="7.8.9")
    assert made.version_short() == "7.8"
    with pytest.raises(LookupError, match=r"pydantic/version.py of pydantic does not define nowhere"):
        definitions("pydantic", "pydantic/version.py", ("version_short", "nowhere"), VERSION="7.8.9")
