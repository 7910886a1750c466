"""The record of a bench: one JSON file a rig, and one with all figures of a full run."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolchain.cache import cache_root

from benchmarks.rigs.figures import Figure, Outcome
from benchmarks.rigs.plan import Plan

LATEST = "latest.json"


def write(folder: Path, *, name: str, outcome: Outcome, plan: Plan, machine: Mapping[str, Any], command: str) -> None:
    """`<name>.json`: machine, versions, commands, medians and spread, and every run behind them."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "name": name,
        "command": command,
        "plan": {
            "pairs": plan.pairs,
            "warmup_seconds": plan.warmup,
            "window_seconds": plan.window,
            "sessions": plan.sessions,
            "seed": plan.seed,
        },
        "machine": machine,
        **outcome.record(),
    }
    _put(folder / f"{name}.json", _portable(record))


def write_latest(folder: Path, *, title: str, figures: list[Figure], machine: Mapping[str, Any], command: str) -> None:
    """All figures of the last full runs: of `make bench` and of `make bench-rigs`, each with its own machine.

    A run takes the place of the last with its title; what the other one says stays.
    """
    file = folder / LATEST
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {"runs": {}, "figures": {}}
    old = known["runs"].get(title, {}).get("figures", [])
    kept = {name: record for name, record in known["figures"].items() if name not in old}
    fresh = {
        figure.name: {"median": figure.median, "spread": list(figure.spread), "unit": figure.unit} for figure in figures
    }
    run = {"command": command, "machine": machine, "figures": list(fresh)}
    _put(file, {"runs": known["runs"] | {title: run}, "figures": kept | fresh})


def _put(file: Path, record: Any) -> None:
    file.write_text(json.dumps(record, indent=1, default=str) + "\n", encoding="utf-8")


def _portable(value: Any) -> Any:
    """The same without this machine's folders: results are committed."""
    if isinstance(value, str):
        return value.replace(f"{Path.cwd()}/", "").replace(f"{cache_root()}/", "").replace("/tmp/", "")
    if isinstance(value, dict):
        return {key: _portable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_portable(item) for item in value]
    return value
