"""What is there for `kubectl apply`: the operator as the chart has it, and fleets that the model takes."""

from pathlib import Path

import pytest
import yaml
from tests.unit.charts import raw
from tests.unit.charts.helm import manifests

from rolloutfleet.spec import KIND, RolloutFleet

pytestmark = pytest.mark.apiserver  # for helm, which is compiled with it

FLEETS = sorted(raw.FILE.parent.glob("fleet-*.yaml"))


def test_the_operator_is_the_one_of_the_chart() -> None:
    assert raw.FILE.read_text() == raw.page(), "make chart"


def test_it_is_all_of_the_chart_but_the_definition_and_nothing_says_helm() -> None:
    there = [(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(raw.FILE.read_text())]
    charted = [(each["kind"], each["metadata"]["name"]) for each in manifests()]
    definition = ("CustomResourceDefinition", "rolloutfleets.rolloutfleet.dev")
    assert there == [("Namespace", "rolloutfleet-system"), *(each for each in charted if each != definition)]
    assert "helm" not in raw.FILE.read_text().lower()


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
