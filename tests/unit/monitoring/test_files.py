"""Rules and dashboard are generated from the metrics that are declared, and are what Grafana reads."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard
from monitoring.alerts import ALERTS, RUNBOOK
from monitoring.dashboard import COLUMNS, dashboard
from monitoring.files import files
from monitoring.panels import ROWS
from monitoring.promql import PROXY, NotDeclared, of
from tests.paths import ROOT
from tests.unit.proxy.telemetry.test_metrics import declared_metrics
from tests.unit.test_docs import anchors

from rolloutfleet_operator.policy.reasons import Metric

NAME = re.compile(r"\brolloutfleet_\w+")
PARTS_OF_HISTOGRAMS = re.compile(r"_(bucket|sum|count)$")


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(ROOT)))
def test_the_generated_files_are_what_the_metrics_say(file: Path) -> None:
    assert file.read_text() == files()[file], "make chart"


def test_every_series_is_of_a_metric_that_proxy_or_operator_declares() -> None:
    declared = {each.name for each in declared_metrics(PROXY)} | set(Metric)
    named = {name for text in files().values() for name in NAME.findall(text)} - {"rolloutfleet_dev_fleet"}
    assert {PARTS_OF_HISTOGRAMS.sub("", name) for name in named} <= declared
    assert set(Metric) <= {PARTS_OF_HISTOGRAMS.sub("", name) for name in named}, "the operator's are all shown"


def test_a_label_that_a_metric_does_not_have_is_an_error() -> None:
    assert of(PROXY.memory_bytes, kind="rss") == 'rolloutfleet_memory_bytes{kind="rss"}'
    with pytest.raises(NotDeclared, match="rolloutfleet_memory_bytes has no label sort"):
        of(PROXY.memory_bytes, sort="rss")


def test_every_alert_has_its_entry_in_the_runbook() -> None:
    written = (ROOT / RUNBOOK).read_text()
    assert [name for name in (each.name for each in ALERTS) if f"### `{name}`" not in written] == []
    for alert in ALERTS:
        page, _, anchor = alert.rule()["annotations"]["runbook"].partition("#")
        assert anchor in anchors((ROOT / page).read_text())


def panels() -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = dashboard()["panels"]
    return shown


def test_every_panel_is_in_the_dashboard_under_an_id_of_its_own() -> None:
    titles = Counter(title for row in ROWS for title in (row.title, *(panel.title for panel in row.panels)))
    assert Counter(panel["title"] for panel in panels()) == titles
    assert len({panel["id"] for panel in panels()}) == len(panels()) > 30


def test_no_two_panels_overlap_and_none_is_beyond_the_grid() -> None:
    cells: Counter[tuple[int, int]] = Counter()
    for panel in panels():
        place = panel["gridPos"]
        assert place["x"] >= 0 and place["x"] + place["w"] <= COLUMNS
        columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
        cells.update(itertools.product(columns, rows))
    assert set(cells.values()) == {1}


def test_all_panels_ask_the_data_source_that_is_chosen() -> None:
    variables = {each["name"]: each for each in dashboard()["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    assert "uid" in json.dumps(variables["fleet"]["datasource"])
    for panel in panels():
        for part in () if panel["type"] == "row" else (panel, *panel["targets"]):
            assert part["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
    used = set(
        re.findall(r"\$(\w+)", " ".join(target["expr"] for panel in panels() for target in panel.get("targets", ())))
    )
    assert used == {"namespace", "fleet", "__rate_interval"}


def test_grafana_knows_every_field_of_the_dashboard() -> None:
    """As far as its own library goes: what it reads and writes again has lost and changed nothing."""
    register_default_plugins()
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(dashboard())))
    assert list(lost(dashboard(), written)) == []
    assert list(lost({**dashboard(), "titel": "x"}, written)) == ["/titel"]


def lost(before: Any, after: Any, where: str = "") -> Any:
    """Where something is missing, or another."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name, value in before.items():
            if name in after:
                yield from lost(value, after[name], f"{where}/{name}")
            else:
                yield f"{where}/{name}"
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (one, other) in enumerate(zip(before, after, strict=True)):
            yield from lost(one, other, f"{where}/{index}")
    elif before != after:
        yield where
