"""Many sessions open, against few: resident memory, which must not grow with their number, the store, and how long a
proxy takes to serve again that was killed with all of them open."""

import contextlib
import sqlite3
import time
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.rigs import accounts, load
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_most, exactly, figure
from benchmarks.rigs.load import Answers, Generator
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy
from rolloutfleet_proxy.store.database import FILE

MB = 1e6
AGENTS = 32
CACHE_BYTES = 3 * 2**20
"""The bound of the proxy's caches in both runs: what 2,000 sessions fill, so that caches are full in both."""
FULL = 0.9
BYTES_OF_AN_ID = 4


@dataclass(frozen=True, slots=True)
class Point:
    """A proxy with so many sessions open, after one more turn of each. Bytes."""

    sessions: int
    rss: int
    pss: int
    anonymous: int
    caches: dict[str, int]
    stored: int
    """By the store's file and its write-ahead log."""
    tokens: int
    """Prompt and output tokens of all turns, those of a shared history once."""
    boot: float
    """Seconds from the proxy's start on an empty store until it was ready."""
    recovery: float
    """The same after it was killed, on the store of all these sessions."""
    lost: int
    """Turns that it then had no more."""

    @property
    def caches_full(self) -> bool:
        return sum(self.caches.values()) >= FULL * CACHE_BYTES


def open_sessions(plan: Plan) -> Outcome:
    """Memory of the proxy's process tree, its store, and its way back after SIGKILL."""
    few, many = plan.sessions
    with bench(plan) as on:
        on.gateway.wait_until_ready()  # else the first start is slower by its
        small, checks_small = _point(on, few)
        large, checks_large = _point(on, many)
        notes = [
            f"caches were not full at {point.sessions} sessions: {point.caches}"
            for point in (small, large)
            if not point.caches_full
        ]
        on.runs.extend([asdict(small), asdict(large)])
        figures = [
            *_figures(small, large, turns=many * (on.workload.turns + 1)),
            *checks_small,
            *checks_large,
        ]
        return Outcome(figures=figures, runs=on.runs, commands=on.commands, notes=notes)


def _figures(small: Point, large: Point, *, turns: int) -> list[Figure]:
    few, many = small.sessions, large.sessions
    per_10k = 10_000 / (many - few)
    recovery = "per_10k_sessions" if many == 10_000 else f"of_{many}_sessions"
    return [
        figure("rss_growth_mb_per_10k_sessions", "MB", [(large.rss - small.rss) / MB * per_10k], goal=at_most(5)),
        figure("pss_growth_mb_per_10k_sessions", "MB", [(large.pss - small.pss) / MB * per_10k]),
        figure(f"rss_{few}_open_mb", "MB", [small.rss / MB]),
        figure(f"rss_{many}_open_mb", "MB", [large.rss / MB]),
        figure(f"recover_seconds_{recovery}", "s", [large.recovery]),
        figure("boot_seconds", "s", [small.boot, large.boot]),
        figure("turns_lost_by_kill", "turns", [small.lost + large.lost], goal=exactly(0), check=True),
        figure("store_bytes_per_token", "B", [large.stored / large.tokens]),
        figure("store_bytes_per_turn", "B", [large.stored / turns]),
        figure("store_tokens_per_turn", "tokens", [large.tokens / turns]),
    ]


def _point(on: Bench, sessions: int) -> tuple[Point, list[Figure]]:
    name = f"proxy_{sessions}_sessions"
    began = time.monotonic()
    with on.proxy_for_a_while(name, cache_bytes=CACHE_BYTES) as proxy:
        boot = time.monotonic() - began
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
            stats: dict[str, Any] = proxy.get_json("/stats")
            resident = proxy.memory()
            generator.tell("quit")
            total = Answers(**generator.expect("done")["total"])
        checks = accounts.checks(proxy, [total], label=f"{sessions}_sessions")
        proxy.process.kill()
        stored, tokens = _store(proxy)
    began = time.monotonic()
    with on.proxy_for_a_while(name, cache_bytes=CACHE_BYTES) as proxy:
        recovery = time.monotonic() - began
        lost = total.answers - proxy.get_json("/audit")["turns"]["live"]
    point = Point(
        sessions=sessions,
        rss=resident.rss,
        pss=resident.pss,
        anonymous=resident.anonymous,
        caches=stats["caches"],
        stored=stored,
        tokens=tokens,
        boot=boot,
        recovery=recovery,
        lost=lost,
    )
    say(
        f"  resident {point.rss / MB:.0f} MB, stored {stored / MB:.0f} MB, caches {point.caches}; "
        f"ready in {boot:.1f} s when empty, in {recovery:.1f} s after it was killed"
    )
    return point, checks


def _store(proxy: Proxy) -> tuple[int, int]:
    """Bytes of the store, and tokens in it."""
    folder = proxy.state_dir / "store"
    stored = sum(file.stat().st_size for file in folder.glob(f"{FILE}*"))
    with contextlib.closing(sqlite3.connect(folder / FILE)) as store:
        (ids,) = store.execute("SELECT sum(length(prompt_ids) + length(output_ids)) FROM turns").fetchone()
    return stored, ids // BYTES_OF_AN_ID
