"""The figures as text on a screen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, Self

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from rolloutfleet.cli.show import NOTHING, size, table
from rolloutfleet.cli.status import MOST_FORKS
from rolloutfleet.viewing import safe
from rolloutfleet.viewing.figures import ORDERS, PAUSED, FleetFigures, ProxyFigures, ordered

BAR: Final = 10
WIDE: Final = 120
"""Columns of a screen from which on there is room for bars."""
MEDIUM: Final = 108
"""And from which on there is room for the whole table."""
LEFT_OUT: Final = {"prompt/s", "version", "leases", "forks"}
"""Columns for which a narrow screen has no room; the sums are shown above."""
NEARLY: Final = 0.8
"""Share of the budget from which on memory is yellow."""
MOST_NAMES: Final = 6


@dataclass(frozen=True, slots=True)
class Display:
    """How somebody wants to see it."""

    sort: str
    interval: float
    backwards: bool = False

    def after(self, key: str) -> Self:
        """The view once that key was pressed."""
        if key == "s":
            names = list(ORDERS)
            return replace(self, sort=names[(names.index(self.sort) + 1) % len(names)])
        return replace(self, backwards=not self.backwards) if key == "r" else self


def shown(fleet: FleetFigures, view: Display, *, width: int, asked: bool = True, trouble: str = "") -> RenderableType:
    """The whole screen; `asked`: somebody can press keys, `trouble`: why these figures are old."""
    parts: list[RenderableType] = [_summary(fleet)]
    if asked:
        order = f"{view.sort}{', backwards' if view.backwards else ''}"
        parts.append(Text(f"q quits   s sorts by the next column (now {order})   r reverses", style="dim"))
    parts += [Text(f"proxy {ordinal}: {safe(why)}", style="red") for ordinal, why in sorted(fleet.failed.items())]
    if trouble:
        parts.append(Text(safe(trouble), style="red"))
    parts += ["", _proxies(ordered(fleet.rows, view.sort, backwards=view.backwards), width=width)]
    return Group(*parts)


def _summary(fleet: FleetFigures) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    opened, ended = fleet.total(lambda row: row.open), fleet.total(lambda row: row.ended)
    ready = sum(row.state == "ready" for row in fleet.rows)
    sampled, prompt = fleet.total(lambda row: row.sampled), fleet.total(lambda row: row.prompt)
    grid.add_row("Proxies", f"{ready} of {len(fleet.rows)} ready")
    grid.add_row("Sessions", f"{_number(opened)} open, {_number(ended)} ended")
    grid.add_row("Calls", f"{_number(fleet.total(lambda row: row.in_flight))} in flight")
    grid.add_row("Tokens a second", f"{_number(sampled)} sampled, {_number(prompt)} of prompts")
    grid.add_row("Weights", _weights(fleet))
    grid.add_row("Leases", f"{_number(fleet.total(lambda row: row.leases))} in force")
    grid.add_row("Forks", _forks(fleet))
    grid.add_row("Refusals", Text(_counts(fleet.most(lambda row: row.refused))))
    return grid


def _weights(fleet: FleetFigures) -> Text:
    versions = ", ".join(map(str, fleet.versions)) or NOTHING
    said = Text(f"version {versions}")
    if fleet.paused:
        style = "yellow" if fleet.paused == PAUSED else "red"
        said.append("   ").append("paused" if fleet.paused == PAUSED else "paused too long: calls are refused", style)
    return said


def _forks(fleet: FleetFigures) -> Text:
    reasons = fleet.most(lambda row: row.forked_by)
    forks, turns = (int(fleet.total(attrgetter(name)) or 0) for name in ("forks", "follow_ups"))
    if not turns:
        return Text(NOTHING)
    style = "yellow" if forks > MOST_FORKS * turns else ""
    why = f": {_counts(reasons)}" if reasons else ""
    return Text(f"{forks} of {turns} follow-up turns ({forks / turns:.1%}){why}", style)


def _counts(counts: Sequence[tuple[str, int]]) -> str:
    listed = [f"{safe(name)} {count}" for name, count in counts[:MOST_NAMES]]
    return ", ".join([*listed, *(["…"] if len(counts) > MOST_NAMES else [])]) or NOTHING


def _proxies(rows: Sequence[ProxyFigures], *, width: int) -> Table:
    """A line for each, with as many columns as there is room for."""
    cells: dict[str, Callable[[ProxyFigures], str | Text]] = {
        "proxy": lambda row: str(row.proxy),
        "state": _state,
        "open": lambda row: _number(row.open),
        "in flight": lambda row: _number(row.in_flight),
        "sampled/s": lambda row: _number(row.sampled),
        "prompt/s": lambda row: _number(row.prompt),
        "memory": lambda row: _memory(row, bar=width >= WIDE, budget=width >= MEDIUM),
        "version": lambda row: _number(row.version),
        "leases": lambda row: _number(row.leases),
        "forks": lambda row: _number(row.forks),
        "refused": lambda row: _number(sum(row.refused.values())),
    }
    columns = [name for name in cells if width >= MEDIUM or name not in LEFT_OUT]
    made = table(*columns, numbers=tuple(name for name in columns if name not in ("state", "memory")))
    for column in made.columns:
        column.no_wrap, column.overflow = True, "ellipsis"
    for row in rows:
        made.add_row(*(cells[name](row) for name in columns))
    return made


def _state(row: ProxyFigures) -> Text:
    if row.paused:
        return Text(PAUSED, style="yellow" if row.paused == PAUSED else "red")
    return Text(safe(row.state), style="" if row.state == "ready" else "yellow")


def _memory(row: ProxyFigures, *, bar: bool, budget: bool) -> Text:
    if row.memory is None or not row.budget:
        return Text(size(row.memory))
    share = row.memory / row.budget
    style = "red" if share > 1 else "yellow" if share > NEARLY else "green"
    full = min(BAR, round(share * BAR))
    said = Text.assemble(("█" * full, style), ("░" * (BAR - full) + " ", "dim")) if bar else Text()
    of = f" of {size(row.budget)}" if budget else f" {share:.0%}"
    return said.append(f"{size(row.memory)}{of}", "" if share <= NEARLY else style)


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:,.0f}"
