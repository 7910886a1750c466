"""The parts of examples/tiny_rl without an engine or PyTorch; tests/engine/test_tiny_rl.py runs the whole."""

from xml.etree import ElementTree

import pytest
from examples.tiny_rl.agents import reward_of
from examples.tiny_rl.picture import draw, table
from rich.console import Console

SVG = "{http://www.w3.org/2000/svg}"


def run(*rewards: float) -> dict[str, object]:
    steps = [
        {"version": version, "reward": reward, "tokens": 9, "seconds": 1.0, "furthest": 1e-6}
        for version, reward in enumerate(rewards)
    ]
    return {"steps": steps, "parity": {"furthest": 2e-6, "cut_turns": 4}}


@pytest.mark.parametrize(("text", "reward"), [("", 0.0), ("eeee", 1.0), ("e e.", 0.5), ("abc", 0.0)])
def test_the_reward_is_the_share_of_what_is_wished_for(text: str, reward: float) -> None:
    assert reward_of(text) == reward


def test_the_plot_has_a_line_a_run_that_rises_where_the_reward_does() -> None:
    drawn = ElementTree.fromstring(draw({"trained": run(0.1, 0.4, 0.9), "shuffled": run(0.1, 0.1)}))
    lines = [each.attrib["points"].split() for each in drawn.iter(f"{SVG}polyline")]
    assert [len(points) for points in lines] == [3, 2]
    heights = [float(point.split(",")[1]) for point in lines[0]]
    assert heights == sorted(heights, reverse=True) and heights[0] > heights[-1]
    assert {"trained", "shuffled"} <= {each.text for each in drawn.iter(f"{SVG}text")}


def test_nothing_to_draw_is_no_error() -> None:
    ElementTree.fromstring(draw({"trained": run()}))


def test_the_table_has_a_line_a_step_and_the_check_below() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(table(run(0.125, 0.5)))
    text = shown.get()
    assert "0.125" in text and "0.500" in text and "cut turns" in text and "2.0e-06" in text
