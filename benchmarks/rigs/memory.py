"""Resident memory with many sessions open, against few: it must not grow with their number."""

from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.rigs import accounts, load
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_most, figure
from benchmarks.rigs.load import Answers, Generator
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy

MB = 1e6
AGENTS = 32
CACHE_BYTES = 16 * 2**20
"""The bound of the proxy's caches in both runs: what 500 sessions fill, so that caches are full in both."""
FULL = 0.8


@dataclass(frozen=True, slots=True)
class Point:
    """A proxy with so many sessions open, after one more turn of each. Bytes."""

    sessions: int
    rss: int
    pss: int
    anonymous: int
    caches: dict[str, int]
    stored: int

    @property
    def caches_full(self) -> bool:
        return sum(self.caches.values()) >= FULL * CACHE_BYTES


def rss_open_sessions(plan: Plan) -> Outcome:
    """Resident memory of the proxy's process tree with many sessions open, less that with few."""
    few, many = plan.sessions
    with bench(plan) as on:
        small, checks_small = _point(on, few)
        large, checks_large = _point(on, many)
        notes = [
            f"caches were not full at {point.sessions} sessions: {point.caches}"
            for point in (small, large)
            if not point.caches_full
        ]
        on.runs.extend([asdict(small), asdict(large)])
        figures = [
            figure(f"rss_{many}_open_vs_{few}_mb", "MB", [(large.rss - small.rss) / MB], goal=at_most(50)),
            figure(f"rss_{few}_open_mb", "MB", [small.rss / MB]),
            figure(f"rss_{many}_open_mb", "MB", [large.rss / MB]),
            figure(f"pss_{many}_open_vs_{few}_mb", "MB", [(large.pss - small.pss) / MB]),
            figure("store_bytes_per_turn", "B", [large.stored / (many * (on.workload.turns + 1))]),
            *checks_small,
            *checks_large,
        ]
        return Outcome(figures=figures, runs=on.runs, commands=on.commands, notes=notes)


def _point(on: Bench, sessions: int) -> tuple[Point, list[Figure]]:
    name = f"proxy_{sessions}_sessions"
    with on.proxy_for_a_while(name, cache_bytes=CACHE_BYTES) as proxy:
        say(f"  {sessions} sessions")
        options = {"sessions": sessions, "in-flight": AGENTS}
        line = load.command(
            target=proxy.target, workload=on.workload, texts=on.texts, seed=next(on.seeds), options=options
        )
        on.commands[f"load_{sessions}_sessions"] = line
        with Generator(line) as generator:
            generator.expect("opened")
            generator.tell("more 1")
            generator.expect("more")
            point = _measure(proxy, sessions)
            generator.tell("quit")
            total = Answers(**generator.expect("done")["total"])
        say(f"  resident {point.rss / MB:.0f} MB, stored {point.stored / MB:.0f} MB, caches {point.caches}")
        return point, accounts.checks(proxy, [total], label=f"{sessions}_sessions")


def _measure(proxy: Proxy, sessions: int) -> Point:
    stats: dict[str, Any] = proxy.get_json("/stats")
    resident = proxy.memory()
    return Point(
        sessions=sessions,
        rss=resident.rss,
        pss=resident.pss,
        anonymous=resident.anonymous,
        caches=stats["caches"],
        stored=proxy.stored_bytes(),
    )
