"""Counts of passed, failed and skipped tests, for whoever started the run: lines of JSON in the file of COUNTS_FILE."""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

COUNTS_FILE: Final = "ROLLOUTFLEET_COUNTS_FILE"


@dataclass(frozen=True, slots=True)
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0

    def __add__(self, other: "Counts") -> "Counts":
        return Counts(self.passed + other.passed, self.failed + other.failed, self.skipped + other.skipped)


def asked_for() -> str | None:
    """The file, for this process alone: what it starts counts for nobody."""
    return os.environ.pop(COUNTS_FILE, None)


def report(counts: Counts, file: str | None) -> None:
    """Tell whoever asked for it."""
    if file:
        with Path(file).open("a") as lines:
            lines.write(json.dumps(asdict(counts)) + "\n")


def reported(file: Path) -> Counts:
    """The sum of all that was told; nothing where there is no file."""
    lines = file.read_text().splitlines() if file.is_file() else []
    return sum((Counts(**json.loads(line)) for line in lines), Counts())
