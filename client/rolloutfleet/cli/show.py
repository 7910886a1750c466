"""Figures as text: tables, byte counts, times."""

import json
import sys
from typing import Any

from rich.console import Console, JustifyMethod
from rich.table import Table

from rolloutfleet.cli.encoding import has_unicode
from rolloutfleet.wire import BranchReason

NOTHING = "-"


WIDE = 250


def console() -> Console:
    """For people; where nobody looks at a screen, lines are not broken. Brackets and colons of texts are no markup."""
    made = Console(highlight=False, markup=False, emoji=False)
    if not made.is_terminal:
        made.width = WIDE
    return made


def print_json(value: Any, *, ensure_ascii: bool = False) -> None:
    json.dump(value, sys.stdout, ensure_ascii=ensure_ascii or not has_unicode(sys.stdout), indent=1)
    sys.stdout.write("\n")


def table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    """A plain table; the columns in `numbers` are aligned to the right, the first is never broken."""
    made = Table(box=None, pad_edge=False, header_style="bold")
    for index, column in enumerate(columns):
        justify: JustifyMethod = "right" if column in numbers else "left"
        made.add_column(column, justify=justify, overflow="fold", no_wrap=index == 0)
    return made


def size(amount: float | None) -> str:
    """`1.5 GiB`"""
    if amount is None:
        return NOTHING
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(amount) < 1024 or unit == "GiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def span(seconds: float | None) -> str:
    """`1h 5m`, `2m 3s`, `4s`"""
    if seconds is None:
        return NOTHING
    whole = int(seconds)
    hours, minutes, rest = whole // 3600, whole // 60 % 60, whole % 60
    if hours:
        return f"{hours}h {minutes}m"
    return f"{minutes}m {rest}s" if minutes else f"{rest}s"


def sampled(said: Any) -> str:
    """`temperature 0.7, max_tokens 512, enable_thinking false`: what a turn was sampled with, as far as somebody said.
    In a dump it may be anything."""
    own = dict(said) if isinstance(said, dict) else {}
    arguments = own.pop("chat_template_kwargs", None)
    own |= arguments if isinstance(arguments, dict) else {}
    return text(", ".join(f"{name} {json.dumps(value)}" for name, value in own.items() if value is not None))


def reason(branch: BranchReason) -> str:
    """`content of message 3`: what differs where a turn forks."""
    return branch.field if branch.message is None else f"{branch.field} of message {branch.message}"


def text(value: object) -> str:
    return NOTHING if value is None or value == "" else str(value)
