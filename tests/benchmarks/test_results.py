"""`latest.json` holds the last full run of each set, and no figure of an earlier one."""

import json
from pathlib import Path

from benchmarks.rigs import results
from benchmarks.rigs.figures import Figure, figure


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
