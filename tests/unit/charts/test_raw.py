"""What is there for `kubectl apply`: fleets that the model takes."""

from pathlib import Path

import pytest
import yaml
from tests.paths import ROOT

from rolloutfleet.spec import KIND, RolloutFleet

FLEETS = sorted((ROOT / "examples" / "kubernetes").glob("fleet-*.yaml"))


@pytest.mark.parametrize("file", FLEETS, ids=lambda file: file.stem)
def test_an_example_is_a_fleet(file: Path) -> None:
    (fleet,) = [each for each in yaml.safe_load_all(file.read_text()) if each["kind"] == KIND]
    RolloutFleet.model_validate(fleet, by_alias=True, by_name=False)


def test_no_two_examples_are_of_one_name() -> None:
    names = [
        manifest["metadata"]["name"]
        for file in FLEETS
        for manifest in yaml.safe_load_all(file.read_text())
        if manifest["kind"] == KIND
    ]
    assert len(names) == len(set(names)) == len(FLEETS)
