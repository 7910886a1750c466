"""The table of docs/models.md that says what each chat format holds, from what was measured of it."""

from __future__ import annotations

import json
import re
from typing import Final

from tests.paths import ROOT
from tests.unit.proxy.tokens.models.families import FAMILIES, VARIANTS
from tests.unit.proxy.tokens.models.measuring import RESULTS, SYSTEM, USER, Measured

PAGE: Final = ROOT / "docs" / "models.md"
NAMES: Final = sorted([*FAMILIES, *VARIANTS])

_HEAD: Final = (
    "| format | turns extend across | tool calls in a reply | reasoning comes out | "
    "goes in between calls | before a user's message | later system messages |\n|---|---|---|---|---|---|---|\n"
)
_TABLE: Final = re.compile(re.escape(_HEAD) + r"((?:\|.*\n)*)")
_ALL: Final = (RESULTS, USER, SYSTEM)


def row(name: str, found: Measured) -> str:
    across = "all" if found.across == _ALL else ", ".join(found.across) or "nothing"
    calls = {0: "none", 1: "one"}.get(found.calls, "several")
    cells = [
        across,
        calls,
        _reasoning(found),
        "yes" if found.keeps_since_user else "no",
        "yes" if found.keeps_before_user else "no",
        "as sent" if found.later_as_sent else "as reminders",
    ]
    return f"| `{name}` | {' | '.join(cells)} |\n"


def rows(page: str) -> dict[str, str]:
    """The table's rows, by format."""
    found = _TABLE.search(page)
    assert found is not None, f"{PAGE} has no table of what formats hold"
    return {line.split("`")[1]: f"{line}\n" for line in found[1].splitlines()}


def with_rows(page: str, told: dict[str, str]) -> str:
    """The page with the rows given in the place of its own."""
    return _TABLE.sub(lambda _: _HEAD + "".join(told[name] for name in sorted(told)), page)


def _reasoning(found: Measured) -> str:
    if not found.thinks:
        return "no"
    asked = ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in found.arguments.items())
    return f"with {asked}" if asked else "yes"
