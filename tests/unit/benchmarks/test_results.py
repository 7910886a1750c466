"""Records hold no folder of the machine, and `latest.json` the last full run of each set alone."""

import json
from pathlib import Path

import pytest
from benchmarks.plots.draw import RESULTS
from benchmarks.rigs import results
from benchmarks.rigs.figures import Figure, Outcome, figure
from benchmarks.rigs.plan import Plan
from toolchain.cache import cache_root


def write(folder: Path, title: str, *figures: Figure) -> None:
    results.write_latest(folder, title=title, figures=list(figures), machine={"cores": 2}, command=title)


def test_a_full_run_takes_the_place_of_the_last_of_its_kind(tmp_path: Path) -> None:
    write(tmp_path, "bench", figure("speed", "ratio", [1.0, 2.0, 3.0]), figure("given_up", "ms", [4.0]))
    write(tmp_path, "bench-rigs", figure("rate", "1/s", [7.0]))
    write(tmp_path, "bench", figure("speed", "ratio", [5.0]))
    latest = json.loads((tmp_path / results.LATEST).read_text())
    assert latest["figures"] == {
        "rate": {"median": 7.0, "spread": [7.0, 7.0], "unit": "1/s"},
        "speed": {"median": 5.0, "spread": [5.0, 5.0], "unit": "ratio"},
    }
    assert {title: run["figures"] for title, run in latest["runs"].items()} == {
        "bench": ["speed"],
        "bench-rigs": ["rate"],
    }


def test_a_record_names_no_folder_of_the_machine(tmp_path: Path) -> None:
    words = [f"{Path.cwd()}/.venv/bin/python", f"{cache_root()}/peers-one/bin/python", "/tmp/bench/proxy.yaml"]
    outcome = Outcome(figures=[], runs=[{"command": words}], commands={"gateway": words})
    results.write(tmp_path, name="rig", outcome=outcome, plan=Plan(), machine={}, command="python -m benchmarks rig")
    record = json.loads((tmp_path / "rig.json").read_text())
    kept = [".venv/bin/python", "peers-one/bin/python", "bench/proxy.yaml"]
    assert record["commands"]["gateway"] == record["runs"][0]["command"] == kept


COMMITTED = sorted(file for file in RESULTS.rglob("*.json") if file.parent.name != "quick")


@pytest.mark.parametrize("file", COMMITTED, ids=lambda file: str(file.relative_to(RESULTS)))
def test_the_committed_records_name_none(file: Path) -> None:
    text = file.read_text()
    assert [folder for folder in ("/root/", "/home/", "/tmp/", "/Users/") if folder in text] == []
