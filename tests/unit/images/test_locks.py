"""What goes into the images is what is tested here: the locks of the images are cuts of the project's one lock."""

import re
import tomllib
from pathlib import Path

import pytest
from images.recipes import INSTALLER_LOCK, RECIPES, REPOSITORY, Recipe
from images.wheels import platforms
from tests.unit.images.entrypoints import ENTRYPOINTS
from tests.unit.images.locks import pinned

LOCKS = [*(recipe.lock for recipe in RECIPES.values()), INSTALLER_LOCK]
EXTRAS = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]


ALL = pinned(REPOSITORY / "requirements.lock")


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", asked, maxsplit=1)[0] for asked in requirements}


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_an_image_holds_the_very_versions_that_are_tested(lock: Path) -> None:
    there = pinned(lock)
    assert there
    assert {name for name, pins in there.items() if len(pins) != 1 or not pins <= ALL.get(name, set())} == set(), (
        "make lock"
    )


@pytest.mark.parametrize(
    "recipe", [each for each in RECIPES.values() if each.with_project], ids=lambda each: each.target
)
def test_an_image_has_what_its_part_of_the_project_asks_for(recipe: Recipe) -> None:
    asked = names([*EXTRAS["dependencies"], *EXTRAS["optional-dependencies"][recipe.target]])
    assert asked - set(pinned(recipe.lock)) == set(), "make lock"


def test_the_proxys_image_can_trace_calls() -> None:
    assert names(EXTRAS["optional-dependencies"]["otel"]) <= set(pinned(RECIPES["proxy"].lock)), "make lock"


def test_the_gateways_image_has_what_a_local_fleet_starts_it_with() -> None:
    asked = set((recipe := RECIPES["gateway"]).lock.with_suffix(".in").read_text().splitlines()[1:])
    assert {"smg", "setproctitle"} == asked <= set(pinned(recipe.lock))
    assert asked <= names(EXTRAS["optional-dependencies"]["local"])


def test_wheels_for_an_older_c_library_do_and_those_for_a_newer_one_do_not() -> None:
    tags = platforms("aarch64")
    assert {"manylinux_2_28_aarch64", "manylinux2014_aarch64", "manylinux_2_5_aarch64"} < set(tags)
    assert not any("_2_29_" in tag or "x86_64" in tag for tag in tags)


def test_every_image_begins_with_the_init_that_its_lock_names() -> None:
    assert set(ENTRYPOINTS) == set(RECIPES)
    for target, words in ENTRYPOINTS.items():
        assert words[:3] == ["dumb-init", "--single-child", "--"], target
        assert "dumb-init" in pinned(RECIPES[target].lock), target
