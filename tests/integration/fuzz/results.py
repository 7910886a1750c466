"""What a fuzz covered, as a file."""

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.integration.fuzz.judging import calls
from tests.integration.fuzz.running import Covered, Fault

LATEST = Path(__file__).parent / "results" / "latest.json"
LEAST_2XX = 0.2
"""The share of cases that must be valid and reach a 2xx: else a fuzz shows little but that nonsense is refused."""

Json = Any


def summary(
    covered: Covered,
    faults: Sequence[Fault],
    *,
    asked: int,
    commit: str,
    seed: int,
    proxies: int,
    date: str,
    seconds: float,
) -> Json:
    """All that was covered and found, in the form of the result file. Seconds are of the wall."""
    return {
        "date": date,
        "commit": commit,
        "seed": seed,
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "proxies": proxies,
        "seconds": round(seconds, 1),
        "cases": covered.cases,
        "complete": covered.cases >= asked,
        "reached_2xx": covered.reached_2xx,
        "share_2xx": round(share(covered), 3),
        "batches": covered.batches,
        "audits_compared": covered.audits,
        "calls_without_2xx": sorted(calls() - {route for route, each in covered.by_route.items() if each["2xx"]}),
        "by_kind": _sorted(covered.by_kind),
        "by_route": {route: _sorted(counts) for route, counts in sorted(covered.by_route.items())},
        "by_status": _sorted(covered.by_status),
        "by_code": _sorted(covered.by_code),
        "faults": [asdict(fault) for fault in faults],
    }


def share(covered: Covered) -> float:
    return covered.reached_2xx / max(1, covered.cases)


def is_clean(result: Json) -> bool:
    """It came to its end, found nothing, every call of the API was answered with a 2xx, and enough of it was valid."""
    whole = result["complete"] and not result["faults"] and not result["calls_without_2xx"]
    return bool(whole and result["share_2xx"] >= LEAST_2XX)


def write(result: Json, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(result, indent=2) + "\n")


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
