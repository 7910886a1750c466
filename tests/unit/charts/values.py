"""The chart's values and what they are by default."""

from collections.abc import Iterator
from typing import Any, Final

import yaml
from tests.paths import ROOT

from rolloutfleet_operator import chart

CHART: Final = ROOT / "charts" / "rolloutfleet"


def _leaves(node: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in node.items():
        if isinstance(value, dict) and value and name != "resources":
            yield from _leaves(value, f"{path}{name}.")
        else:
            yield f"{path}{name}", value


DEFAULTS: Final = dict(_leaves(yaml.safe_load((CHART / chart.VALUES).read_text())))
"""By path."""
