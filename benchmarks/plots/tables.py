"""The records as tables of Markdown, for the page that shows them.

python -m benchmarks.plots.tables [FOLDER]
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.plots.draw import RESULTS
from benchmarks.rigs import r1
from benchmarks.rigs.figures import readable


def tables(folder: Path) -> str:
    """Every figure that has a goal or stands beside one, rig by rig, and R1's whole table where it was measured."""
    records = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.json"))]
    rigs = [record for record in records if "name" in record]
    rows = [row for record in rigs if record["name"] != "r1" for row in _rows(record)]
    text = "\n".join(["| figure | median | smallest, largest | goal | |", "|---|---|---|---|---|", *rows])
    for record in rigs:
        if record["name"] == "r1":
            text += "\n\n" + r1.table(record["runs"][0]["points"])
    return text


def _rows(record: Any) -> Iterator[str]:
    for name, figure in record["figures"].items():
        goal = figure["goal"] or ""
        if goal == "exactly 0" and figure["met"] and "writes" not in name:
            continue  # a check that held
        small, large = map(readable, figure["spread"])
        spread = "" if small == large else f"{small}, {large}"
        met = ("met" if figure["met"] else "missed") if goal else ""
        yield f"| `{name}` | {readable(figure['median'])} {figure['unit']} | {spread} | {goal} | {met} |"


if __name__ == "__main__":
    print(tables(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS))
