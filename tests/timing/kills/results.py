"""What kills covered and showed, as a file: the sum of all legs of a run, each a fleet of its own."""

import hashlib
import json
import os
import platform
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.metadata import packages_distributions, version
from pathlib import Path
from typing import Any

from tests.paths import ROOT
from tests.timing.kills.journal import ACK, EXPORT, IMPORT, START_AGAIN, TURN, Journal
from tests.timing.kills.kinds import Kill, Kind

LATEST = Path(__file__).parent / "results" / "latest.json"
CODE = ("client", "engine", "proxy")
"""What is killed: legs add up where all of it is the same."""
GATEWAYS = ("smg", "sglang_router")
"""Modules of a gateway; one of them is installed."""
LEAST = 1000
LEAST_OF_A_KIND = 50
ANSWERED = (TURN, START_AGAIN, EXPORT, f"{EXPORT} by the library", ACK, f"{ACK} by the library", IMPORT)
"""What clients must have been answered for a run to show anything."""

Json = Any


def summary(
    kills: Sequence[Kill], misses: Counter[str], journal: Journal, *, seed: int, audits: int, seconds: float
) -> Json:
    """Of one leg. Seconds are of the wall."""
    under_way: dict[str, Counter[str]] = {}
    for kill in kills:
        under_way.setdefault(kill.kind, Counter())[kill.under_way] += 1
    return {
        "legs": 1,
        "seeds": [seed],
        "seconds": round(seconds, 1),
        "kills": len(kills),
        "by_kind": _sorted(Counter(str(kill.kind) for kill in kills)),
        "under_way_by_kind": {kind: _sorted(counts) for kind, counts in sorted(under_way.items())},
        "by_how": _sorted(Counter(f"{kill.kind}: {kill.how}" for kill in kills)),
        "by_what_saw_it": _sorted(Counter(kill.seen_by for kill in kills)),
        "by_target": _sorted(Counter(kill.target for kill in kills)),
        "clients_that_waited": _sorted(sum((Counter(kill.clients) for kill in kills), Counter[str]())),
        "not_seen_in_time": _sorted(misses),
        "answers": _sorted(journal.counts),
        "calls_made_again": _sorted(journal.broken),
        "sessions": len(journal.talks),
        "trajectories": len(journal.trajectories),
        "dumps_imported": len(journal.imported),
        "audits_compared": audits,
        "lost": len(journal.lost),
        "twice": len(journal.twice),
        "contradictions": journal.contradictions,
    }


def added(records: Iterable[Json]) -> Json:
    """The sum of legs, or of sums of them."""
    total: Json = {}
    for record in records:
        for name, value in record.items():
            total[name] = _sum(total[name], value) if name in total else value
    return total


def result(record: Json, *, asked: int, proxies: int, date: str) -> Json:
    """The form of the result file: what ran, and the sum of its legs."""
    return {
        "date": date,
        "commit": commit(),
        "code": digest_of_code(),
        "machine": {"cores": os.cpu_count(), "system": platform.platform(), "python": platform.python_version()},
        "versions": {name: version(name) for name in ("openai", *_gateways())},
        "proxies": proxies,
        "complete": record["kills"] >= asked,
        **record,
    }


def record_of(kept: Json) -> Json:
    """The sum of legs in a result file."""
    return {name: kept[name] for name in summary([], Counter(), Journal(), seed=0, audits=0, seconds=0.0)}


def is_clean(kept: Json) -> bool:
    """It came to its end, nothing was lost or there twice, and nothing else that can't be was seen."""
    return bool(kept["complete"] and not (kept["lost"] or kept["twice"] or kept["contradictions"]))


def covers_enough(kept: Json) -> bool:
    """Enough kills, enough of each kind, and every kind of answer was there to be lost."""
    of_each = all(kept["by_kind"].get(kind, 0) >= LEAST_OF_A_KIND for kind in Kind)
    return kept["kills"] >= LEAST and of_each and all(kept["answers"].get(what) for what in ANSWERED)


def write(kept: Json, file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, indent=2) + "\n", encoding="utf-8")


def digest_of_code() -> str:
    """Of every file of what is killed, committed or not."""
    digest = hashlib.sha256()
    for file in sorted(file for folder in CODE for file in (ROOT / folder).rglob("*.py")):
        digest.update(f"{file.relative_to(ROOT)}\n".encode() + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]


def commit() -> str:
    """By its hash; `unknown` outside a clone."""
    command = ("git", "describe", "--always", "--dirty", "--abbrev=12")
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _gateways() -> list[str]:
    installed = packages_distributions()
    return [name for module in GATEWAYS for name in installed.get(module, ())[:1]]


def _sum(one: Json, other: Json) -> Json:
    if isinstance(one, dict):
        both = {name: _sum(one[name], other[name]) for name in one if name in other}
        return one | other | both
    return round(one + other, 1) if isinstance(one, float) else one + other


def _sorted(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0])))
