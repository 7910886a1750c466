"""The committed result: which test catches which fault."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from tests.timing.faults.running import Outcome

LATEST = Path(__file__).parent / "results" / "latest.json"


def write(outcomes: Iterable[Outcome], path: Path = LATEST) -> None:
    """Sorted by name, a line each."""
    lines = [json.dumps(asdict(outcome)) for outcome in sorted(outcomes, key=lambda one: one.fault)]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("[\n " + ",\n ".join(lines) + "\n]\n")


def read(path: Path = LATEST) -> list[Outcome]:
    """Raises FileNotFoundError where there is none."""
    return [Outcome(**each) for each in json.loads(path.read_text())]
