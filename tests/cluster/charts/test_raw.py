"""The operator for `kubectl apply` is the chart's."""

import yaml
from tests.cluster.charts import raw
from tests.cluster.charts.helm import manifests


def test_the_operator_is_the_one_of_the_chart() -> None:
    assert raw.FILE.read_text() == raw.page(), "make chart"


def test_it_is_all_of_the_chart_but_the_definition_and_nothing_says_helm() -> None:
    there = [(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(raw.FILE.read_text())]
    charted = [(each["kind"], each["metadata"]["name"]) for each in manifests()]
    definition = ("CustomResourceDefinition", "rolloutfleets.rolloutfleet.dev")
    assert there == [("Namespace", "rolloutfleet-system"), *(each for each in charted if each != definition)]
    assert "helm" not in raw.FILE.read_text().lower()
