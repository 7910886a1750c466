"""The table and the plot at the end of a run."""

from collections.abc import Mapping
from typing import Any

from rich.table import Table

WIDTH, HEIGHT, MARGIN = 640, 320, 48
COLOURS = ("#1f6fb4", "#c0504d", "#4f8f4f")


def table(found: Mapping[str, Any]) -> Table:
    """The steps, a line each, and then the check of the log-probabilities."""
    shown = Table("version", "reward", "tokens", "seconds", "furthest log-probability", box=None, title_justify="left")
    for step in found["steps"]:
        shown.add_row(
            str(step["version"]),
            f"{step['reward']:.3f}",
            str(step["tokens"]),
            f"{step['seconds']:.1f}",
            f"{step['furthest']:.1e}",
        )
    for name, value in found["parity"].items():
        shown.add_row(name.replace("_", " "), f"{value:.1e}" if isinstance(value, float) else str(value))
    return shown


def draw(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The mean reward of each step as SVG, a line a run."""
    rewards = {name: [step["reward"] for step in run["steps"]] for name, run in runs.items()}
    rewards = {name: values for name, values in rewards.items() if values}
    steps = max((len(values) for values in rewards.values()), default=1)
    top = max((value for values in rewards.values() for value in values), default=1.0) * 1.05 or 1.0
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        _line(MARGIN, HEIGHT - MARGIN, WIDTH - MARGIN, HEIGHT - MARGIN, "#444"),
        _line(MARGIN, MARGIN, MARGIN, HEIGHT - MARGIN, "#444"),
        _text(WIDTH / 2, HEIGHT - 12, "update", "middle"),
        _text(MARGIN, MARGIN - 14, "mean reward", "start"),
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_text(MARGIN - 6, _y(share * top, top) + 4, f"{share * top:.2f}", "end"))
    for step in range(0, steps, max(1, steps // 6)):
        parts.append(_text(_x(step, steps), HEIGHT - MARGIN + 16, str(step), "middle"))
    for (name, values), colour in zip(rewards.items(), COLOURS, strict=False):
        points = " ".join(f"{_x(step, steps):.1f},{_y(value, top):.1f}" for step, value in enumerate(values))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_text(WIDTH - MARGIN, _y(values[-1], top) - 6, name, "end", colour))
    return "\n".join([*parts, "</svg>", ""])


def _x(step: float, steps: int) -> float:
    return MARGIN + step * (WIDTH - 2 * MARGIN) / max(1, steps - 1)


def _y(value: float, top: float) -> float:
    return HEIGHT - MARGIN - value / top * (HEIGHT - 2 * MARGIN)


def _line(*values: float | str) -> str:
    x1, y1, x2, y2, colour = values
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str, colour: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}">{text}</text>'
