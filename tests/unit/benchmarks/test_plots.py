"""Pictures are well-formed, show what they are given, and those of the committed records are up to date."""

import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.plots import draw, tables
from benchmarks.plots.svg import Bar, Line, bars, lines

README = draw.RESULTS.parent / "README.md"
SPACE = "{http://www.w3.org/2000/svg}"


def said(picture: str) -> list[str]:
    return [each.text or "" for each in ElementTree.fromstring(picture).iter(f"{SPACE}text")]


def test_bars_are_as_long_as_their_values() -> None:
    picture = bars("a < b", [Bar("small", 10, "10 MB"), Bar("large", 40, "40 MB")], goals=[("20", 20)])
    whole, *widths = (float(each.attrib["width"]) for each in ElementTree.fromstring(picture).iter(f"{SPACE}rect"))
    assert whole == 760
    assert widths[1] == pytest.approx(4 * widths[0], rel=0.01)
    assert said(picture) == ["a < b", "small", "10 MB", "large", "40 MB", "20"]


def test_a_line_rises_where_its_values_do_and_logarithms_leave_out_zero() -> None:
    drawn = [Line("rate", [(10, 0), (100, 10), (1000, 100), (10_000, 1000)])]
    picture = lines("rates", drawn, across="n", upright="1/s", logarithmic=True)
    (path,) = ElementTree.fromstring(picture).iter(f"{SPACE}polyline")
    places = [tuple(map(float, place.split(","))) for place in path.attrib["points"].split()]
    (x1, y1), (x2, y2), (x3, y3) = places
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert y2 - y1 == pytest.approx(y3 - y2, abs=0.2)
    assert x1 < x2 and y1 > y2


def test_the_committed_pictures_are_those_of_the_committed_records(tmp_path: Path) -> None:
    for file in draw.RESULTS.glob("*.json"):
        shutil.copy(file, tmp_path)
    drawn = {file.name: file.read_text() for file in draw.draw(tmp_path)}
    assert drawn == {file.name: file.read_text() for file in draw.RESULTS.glob("*.svg")}, (
        "python -m benchmarks.plots.draw"
    )
    assert set(drawn) <= set(re.findall(r"\(results/(\w+\.svg)\)", README.read_text()))


def test_the_tables_tell_every_figure_with_a_goal() -> None:
    told = tables.tables(draw.RESULTS)
    row = r"^\| `served_at_400` \| 0\.\d+ ratio \|.*\| at least 0\.\d+ \| (met|missed) \|$"
    assert re.search(row, told, re.MULTILINE)
    assert "`errors_at_400`" not in told, "a check that held"
