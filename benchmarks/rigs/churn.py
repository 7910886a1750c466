"""Sessions of 45 turns with bodies of megabytes, opened and ended: how much memory at the most, and how much after.

The shape is that of verifiers' change #1611, which printed 1053 -> 275 MB at the most and 990 -> 155 MB after, for 4
sessions of 45 turns at once. Each measure is switched off in turn; and the same churn is put on a proxy that holds
every request, as that program did.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from benchmarks.rigs import accounts, load
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_most, figure
from benchmarks.rigs.load import Answers, Generator, Workload
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.trainer import Trainer
from benchmarks.rigs.watching import Resident, resident

MB: Final = 1e6
CONTEXT: Final = 1 << 20
WORKLOAD: Final = Workload(turns=45, shared=8_000, task=3_000, message=40_000)
"""The last body of a session has some 2 MB, and all of them together 46 MB."""
AGENTS: Final = 4
REST: Final = 8.0
"""Seconds after the last session's end until memory is called resting."""
PAYLOAD: Final = 100_000_000

WITHOUT: Final[dict[str, dict[str, Any]]] = {
    "trim": {"allocator": {"trim": False}},
    "mmap_threshold": {"allocator": {"mmap_threshold": 0}},
    "arenas": {"allocator": {"arenas": 0}},
    "all_three": {"allocator": {"trim": False, "mmap_threshold": 0, "arenas": 0}},
}
"""Measures, and the settings that switch each off."""


@dataclass(frozen=True, slots=True)
class Churned:
    """One churn. Bytes, and CPU in seconds."""

    label: str
    sessions: int
    booted: int
    peak: int
    rest: int
    caches: dict[str, int]
    cpu: float
    seconds: float
    trims: dict[str, float]
    collections: dict[str, Any]
    most_in_flight_bytes: int
    answers: Answers
    exported: int


def rss_churn(plan: Plan) -> Outcome:
    """R2's churn alone."""
    with bench(plan, workload=WORKLOAD, context=CONTEXT) as on:
        checks: list[Figure] = []
        figures = _r2s_own(on, checks)
        return Outcome(figures=[*figures, *checks], runs=on.runs, commands=on.commands)


def r2(plan: Plan) -> Outcome:
    """R2's churn, a larger one, that with each measure off, and R2's with requests held."""
    with bench(plan, workload=WORKLOAD, context=CONTEXT) as on:
        checks: list[Figure] = []
        figures = [
            *_r2s_own(on, checks),
            *_figures(_churn(on, "churn_larger", sessions=plan.churn_sessions, agents=2 * AGENTS, checks=checks)),
        ]
        for name, settings in WITHOUT.items():
            label = f"churn_without_{name}"
            figures += _figures(
                _churn(on, label, sessions=plan.churn_sessions, agents=2 * AGENTS, settings=settings, checks=checks)
            )
        figures += _figures(_churn(on, "churn_held", sessions=AGENTS, holding=True, checks=checks))
        return Outcome(figures=[*figures, *checks], runs=on.runs, commands=on.commands)


def _r2s_own(on: Bench, checks: list[Figure]) -> list[Figure]:
    return _figures(_churn(on, "churn", sessions=AGENTS, checks=checks), at_most(275), at_most(155))


def _churn(
    on: Bench,
    label: str,
    *,
    sessions: int,
    agents: int = AGENTS,
    settings: Mapping[str, Any] | None = None,
    holding: bool = False,
    checks: list[Figure],
) -> Churned:
    options = {"sessions": sessions, "in-flight": agents, "end": "mixed"}
    with on.proxy_for_a_while(label, settings=settings, holding=holding) as proxy:
        line = load.command(
            target=proxy.target, workload=on.workload, texts=on.texts, seed=next(on.seeds), options=options
        )
        on.commands[f"load_{label}"] = line
        pid = proxy.process.pid
        booted, cpu, began = resident(pid), proxy.cpu_seconds(), time.monotonic()
        with Resident(pid) as memory:
            with Trainer(proxy) as trainer, Generator(line) as generator:
                generator.expect("opened")
                generator.tell("quit")
                total = Answers(**generator.expect("done")["total"])
            cpu, seconds = proxy.cpu_seconds() - cpu, time.monotonic() - began
            time.sleep(REST)
            peak = memory.peak
        stats = proxy.get_json("/stats")
        churned = Churned(
            label=label,
            sessions=sessions,
            booted=booted,
            peak=peak,
            rest=resident(pid),
            caches=stats["caches"],
            cpu=cpu,
            seconds=seconds,
            trims=stats["trims"],
            collections=stats["collections"],
            most_in_flight_bytes=stats["most_in_flight_bytes"],
            answers=total,
            exported=trainer.trajectories,
        )
        checks += accounts.checks(proxy, [total], label=label)
        on.runs.append(asdict(churned))
        say(
            f"  {label}: booted {booted / MB:.0f} MB, most {peak / MB:.0f} MB, after {churned.rest / MB:.0f} MB, "
            f"CPU {cpu:.1f} s of {seconds:.0f} s, trims {churned.trims}, caches {churned.caches}"
        )
        return churned


def _figures(churned: Churned, peak: Any = None, rest: Any = None) -> list[Figure]:
    return [
        figure(f"rss_peak_{churned.label}_mb", "MB", [churned.peak / MB], goal=peak),
        figure(f"rss_rest_{churned.label}_mb", "MB", [churned.rest / MB], goal=rest),
        figure(f"cpu_{churned.label}_s", "s", [churned.cpu]),
    ]
