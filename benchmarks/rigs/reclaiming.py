"""Many sessions come, are left alone, and are reclaimed: memory and files are afterwards as if they had never been.

Each session has one short turn. They go stale all at once: the rig changes `stale_after` in the settings file of the
proxy that runs. Their dumps are counted, and are no part of the store.
"""

import time
from dataclasses import asdict, dataclass
from typing import Any, Final

import yaml

from benchmarks.rigs import accounts, load
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_most, exactly, figure
from benchmarks.rigs.load import Answers, Generator, Workload
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy
from benchmarks.rigs.watching import Health
from rolloutfleet_proxy.store.database import FILE

MB: Final = 1e6
WORKLOAD: Final = Workload(turns=1, shared=500, task=500)
AGENTS: Final = 32
WARM: Final = 300
"""Sessions that come and go before the first measurement, so that code and caches are warm in both."""
REST: Final = 15.0
"""Seconds after the last session went: pages go back to the disk, and memory to the system."""
STALE, NOT_YET = "1s", "10h"


@dataclass(frozen=True, slots=True)
class Point:
    """A proxy at rest. Bytes."""

    label: str
    rss: int
    store: int
    """The store's file."""
    log: int
    """Its write-ahead log, which stays as large as it once was, up to 64 MiB."""
    dumps: int
    """Files."""
    caches: dict[str, int]


def sessions_reclaimed(plan: Plan) -> Outcome:
    """Memory and store before so many sessions, with all of them, after they were reclaimed, and after as many again.

    The first crowd fills what is kept within bounds, caches and tombstones; the second shows what else grows.
    """
    sessions = plan.reclaimed_sessions
    with bench(plan, reply_tokens=50, workload=WORKLOAD) as on:
        settings = {"sessions": {"stale_after": NOT_YET, "cleanup_interval": "1s"}}
        with on.proxy_for_a_while("reclaimed", settings=settings) as proxy:
            answers = [_come(on, proxy, WARM)]
            _go(proxy)
            before = _measure(proxy, "before")
            answers.append(_come(on, proxy, sessions))
            most = _measure(proxy, "with all")
            with Health(proxy.url) as health:
                began = time.monotonic()
                seconds = _go(proxy) - began
            after = _measure(proxy, "after")
            answers.append(_come(on, proxy, sessions))
            _go(proxy)
            again = _measure(proxy, "after as many again")
            on.runs.extend(asdict(point) for point in (before, most, after, again))
            checks = accounts.checks(proxy, answers, label=f"reclaimed_{sessions}")
            figures = [*_figures(before, most, after, again, sessions=sessions), *checks]
            figures.append(figure(f"reclaimed_{sessions}_a_second", "sessions/s", [sessions / seconds]))
            figures.append(figure(f"reclaimed_{sessions}_health_slowest_ms", "ms", [1e3 * max(health.waits)]))
        return Outcome(figures=figures, runs=on.runs, commands=on.commands)


def _figures(before: Point, most: Point, after: Point, again: Point, *, sessions: int) -> list[Figure]:
    name = f"reclaimed_{sessions}"
    not_dumped = sessions - (after.dumps - before.dumps)
    return [
        figure(f"{name}_rss_before_mb", "MB", [before.rss / MB]),
        figure(f"{name}_rss_with_all_mb", "MB", [most.rss / MB]),
        figure(f"{name}_rss_after_vs_before_mb", "MB", [(after.rss - before.rss) / MB]),
        figure(f"{name}_rss_again_vs_after_mb", "MB", [(again.rss - after.rss) / MB], goal=at_most(20)),
        figure(f"{name}_store_before_mb", "MB", [before.store / MB]),
        figure(f"{name}_store_with_all_mb", "MB", [most.store / MB]),
        figure(f"{name}_store_after_mb", "MB", [after.store / MB]),
        figure(f"{name}_store_again_mb", "MB", [again.store / MB]),
        figure(f"{name}_log_after_mb", "MB", [after.log / MB]),
        figure(f"{name}_not_dumped", "sessions", [not_dumped], goal=exactly(0), check=True),
    ]


def _come(on: Bench, proxy: Proxy, sessions: int) -> Answers:
    """So many sessions, each with its one turn; they stay open."""
    say(f"  {sessions} sessions come")
    options = {"sessions": sessions, "in-flight": AGENTS}
    line = load.command(target=proxy.target, workload=on.workload, texts=on.texts, seed=next(on.seeds), options=options)
    on.commands[f"load_{sessions}_sessions"] = line
    with Generator(line) as generator:
        generator.expect("opened")
        generator.tell("quit")
        return Answers(**generator.expect("done")["total"])


def _go(proxy: Proxy) -> float:
    """Let all sessions go stale; returns when they were gone."""
    _set_stale_after(proxy, STALE)
    while sum(proxy.get_json("/stats")["sessions"].values()):
        time.sleep(0.2)
    gone = time.monotonic()
    time.sleep(REST)
    _set_stale_after(proxy, NOT_YET)
    return gone


def _set_stale_after(proxy: Proxy, value: str) -> None:
    file = proxy.state_dir.parent / "proxy.yaml"
    settings: dict[str, Any] = yaml.safe_load(file.read_text())
    settings["generation"] = settings.get("generation", 0) + 1
    settings["sessions"]["stale_after"] = value
    file.write_text(yaml.safe_dump(settings))
    while proxy.get_json("/stats")["settings"]["generation"] != settings["generation"]:
        time.sleep(0.1)


def _measure(proxy: Proxy, label: str) -> Point:
    store, log = ((proxy.state_dir / "store" / name).stat().st_size for name in (FILE, f"{FILE}-wal"))
    dumps = len(list((proxy.state_dir / "dumps").glob("s*.json")))
    point = Point(label, proxy.memory().rss, store, log, dumps, proxy.get_json("/stats")["caches"])
    say(f"  {label}: resident {point.rss / MB:.0f} MB, store {store / MB:.1f} MB, {dumps} dumps, {point.caches}")
    return point
