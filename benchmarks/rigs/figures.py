"""A figure: the median of its samples, how far they spread, and what was wanted."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class Goal:
    """The bound that a figure's median is to keep to."""

    side: Literal["at least", "at most", "exactly"]
    bound: float

    def met_by(self, value: float) -> bool:
        match self.side:
            case "at least":
                return value >= self.bound
            case "at most":
                return value <= self.bound
            case "exactly":
                return value == self.bound

    def __str__(self) -> str:
        return f"{self.side} {self.bound:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of the table. `check` says that a missed goal is a fault, not a matter of speed."""

    name: str
    unit: str
    samples: tuple[float, ...]
    goal: Goal | None = None
    check: bool = False

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def spread(self) -> tuple[float, float]:
        """Smallest and largest sample."""
        return min(self.samples), max(self.samples)

    @property
    def met(self) -> bool:
        return self.goal is None or self.goal.met_by(self.median)

    @property
    def line(self) -> str:
        """`name value unit`, which is what a bench prints."""
        return f"{self.name} {readable(self.median)} {self.unit}"

    def record(self) -> dict[str, Any]:
        return {
            "median": self.median,
            "spread": list(self.spread),
            "unit": self.unit,
            "samples": list(self.samples),
            "goal": None if self.goal is None else str(self.goal),
            "met": self.met,
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a rig gives back: its figures, and each run behind them."""

    figures: list[Figure]
    runs: list[dict[str, Any]]
    commands: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def record(self) -> dict[str, Any]:
        return asdict(self) | {"figures": {figure.name: figure.record() for figure in self.figures}}


def readable(value: float) -> str:
    """Four significant digits, never as a power of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(3 - math.floor(math.log10(abs(value))), 0)
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def figure(name: str, unit: str, samples: Sequence[float], *, goal: Goal | None = None, check: bool = False) -> Figure:
    return Figure(name=name, unit=unit, samples=tuple(samples), goal=goal, check=check)


def at_least(bound: float) -> Goal:
    return Goal("at least", bound)


def at_most(bound: float) -> Goal:
    return Goal("at most", bound)


def exactly(bound: float) -> Goal:
    return Goal("exactly", bound)
