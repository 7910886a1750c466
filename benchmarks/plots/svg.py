"""Two kinds of chart as SVG text: bars, and lines over logarithmic or plain axes. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

WIDTH: Final = 760
TEXT: Final = 'font-family="system-ui, sans-serif" font-size="13" fill="#222"'
COLOURS: Final = ("#0b6fb8", "#c2410c", "#15803d", "#7c3aed", "#64748b", "#b45309", "#be185d", "#0f766e", "#4d7c0f")
_ROW, _BAR, _LABELS, _TOP = 26, 18, 250, 58
_LEFT, _RIGHT, _HEIGHT, _BOTTOM = 70, 190, 420, 56


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar; `told` is what is written at its end."""

    label: str
    value: float
    told: str
    colour: int = 0


@dataclass(frozen=True, slots=True)
class Line:
    """One line through its points, or the points alone."""

    label: str
    points: Sequence[tuple[float, float]]
    dashed: bool = False
    dots_only: bool = False


def bars(title: str, rows: Sequence[Bar], *, goals: Sequence[tuple[str, float]] = ()) -> str:
    """Bars from 0, one below the other; each goal is an upright line through all of them."""
    height = _TOP + _ROW * len(rows) + (28 if goals else 12)
    most = max([*(row.value for row in rows), *(value for _, value in goals)])
    scale = (WIDTH - _LABELS - 110) / most
    parts = []
    for number, row in enumerate(rows):
        y = _TOP + _ROW * number
        length = max(row.value * scale, 1)
        parts += [
            _text(_LABELS - 8, y + 14, row.label, anchor="end"),
            f'<rect x="{_LABELS}" y="{y}" width="{length:.1f}" height="{_BAR}" fill="{COLOURS[row.colour]}"/>',
            _text(_LABELS + length + 6, y + 14, row.told),
        ]
    bottom = _TOP + _ROW * len(rows)
    for label, value in goals:
        x = _LABELS + value * scale
        parts += [
            f'<line x1="{x:.1f}" y1="{_TOP - 6}" x2="{x:.1f}" y2="{bottom}" stroke="#222" stroke-dasharray="4 3"/>',
            _text(x, bottom + 16, label, anchor="middle"),
        ]
    return _picture(title, height, parts)


def lines(
    title: str, drawn: Sequence[Line], *, across: str, upright: str, logarithmic: bool = False, least: float = 0.0
) -> str:
    """Lines with their names at the right. Logarithmic axes leave out what is not above 0."""
    shown = [(line, [point for point in line.points if not logarithmic or min(point) > 0]) for line in drawn]
    xs = [x for _, points in shown for x, _ in points]
    ys = [y for _, points in shown for _, y in points]
    width, height = WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    x_axis = _Axis(min(xs), max(xs), _LEFT, _LEFT + width, logarithmic=logarithmic)
    low = min(ys) if logarithmic else min(least, *ys)
    y_axis = _Axis(low, max(ys), _TOP + height, _TOP, logarithmic=logarithmic)
    parts = [f'<rect x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}" fill="none" stroke="#bbb"/>']
    for x in x_axis.ticks():
        at = x_axis.at(x)
        parts += [_grid(at, _TOP, at, _TOP + height), _text(at, _TOP + height + 18, _short(x), anchor="middle")]
    for y in y_axis.ticks():
        at = y_axis.at(y)
        parts += [_grid(_LEFT, at, _LEFT + width, at), _text(_LEFT - 6, at + 4, _short(y), anchor="end")]
    parts += [
        _text(_LEFT + width / 2, _HEIGHT - 12, across, anchor="middle"),
        _text(_LEFT, _TOP - 8, upright),
    ]
    for number, (line, points) in enumerate(shown):
        parts += _line(line, [(x_axis.at(x), y_axis.at(y)) for x, y in points], number)
    return _picture(title, _HEIGHT, parts)


@dataclass(frozen=True, slots=True)
class _Axis:
    """Values from `low` to `high`, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool

    def at(self, value: float) -> float:
        low, high, here = (
            (map(math.log10, (self.low, self.high, value)))
            if self.logarithmic
            else (
                self.low,
                self.high,
                value,
            )
        )
        return self.start + (self.end - self.start) * (here - low) / ((high - low) or 1)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            found = [mantissa * 10.0**power for power in powers for mantissa in (1, 2, 5)]
        else:
            step = _round_step((self.high - self.low) / 6 or 1)
            found = [step * number for number in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]
        return [value for value in found if self.low <= value * 1.0000001 and value <= self.high * 1.0000001]


def _round_step(rough: float) -> float:
    power: float = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= rough)


def _line(line: Line, places: list[tuple[float, float]], number: int) -> list[str]:
    colour = COLOURS[number % len(COLOURS)]
    parts = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places if len(places) < 50]
    if not line.dots_only:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dashes = ' stroke-dasharray="6 4"' if line.dashed else ""
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>')
    y = _TOP + 14 + 20 * number
    x = WIDTH - _RIGHT + 12
    return [*parts, f'<rect x="{x}" y="{y - 9}" width="12" height="10" fill="{colour}"/>', _text(x + 18, y, line.label)]


def _grid(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="#e5e5e5"/>'


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1 or value == 0 else f"{value:g}"


def _text(x: float, y: float, text: str, *, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" {TEXT}>{escape(text)}</text>'


def _picture(title: str, height: int, parts: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(title, quote=True)}">'
    )
    heading = f'<text x="12" y="24" {TEXT} font-weight="bold">{escape(title)}</text>'
    body = [f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>', heading, *parts]
    return "\n".join([head, *body, "</svg>"]) + "\n"
