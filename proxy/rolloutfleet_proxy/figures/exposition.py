"""/metrics: what Prometheus reads. Labels are bounded: no session, no address, nothing that a caller chose."""

import platform
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from rolloutfleet.installed import own_version
from rolloutfleet_proxy.figures import histograms
from rolloutfleet_proxy.figures.metrics import CleanupTally, Metrics

SOFTWARE = ("rolloutfleet", "renderers", "tokenizers", "aiohttp", "uvicorn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What is so at the moment of a scrape, beside what was counted."""

    ledger: Mapping[str, Any] = field(default_factory=lambda: {"turns": {}, "sessions": {}})
    """The sums of /audit, not recounted."""
    memory: Mapping[str, int] = field(default_factory=dict)
    """Bytes of the process tree by kind."""
    caches: Mapping[str, int] = field(default_factory=dict)
    """Bytes by cache."""
    queues: Mapping[str, int] = field(default_factory=dict)
    """What waits, by queue."""
    store_bytes: int = 0
    sessions_open: int = 0
    held: Mapping[str, int] = field(default_factory=dict)
    """Chat calls that wait, by what holds them: pause, drain."""
    paused: bool = False
    draining: bool = False
    request_bytes: int = 0
    """What the requests under way hold."""
    weights: Mapping[str, int] = field(default_factory=dict)
    """version, run, epoch."""
    log_dropped: int = 0


def exposition(metrics: Metrics, present: Present) -> bytes:
    """The text that Prometheus reads, in its format 0.0.4."""
    registry = CollectorRegistry()
    registry.register(_Families([*_counted(metrics), *_measured(metrics), *_present(present), _software()]))
    return generate_latest(registry)


def _counted(metrics: Metrics) -> Iterator[Metric]:
    yield _labelled("calls", "Chat calls that are over, by what came of them", "outcome", metrics.calls)
    yield _labelled("calls_passed_on", "Chat calls of other proxies' sessions", "outcome", metrics.passed_on)
    yield _requests(metrics.requests)
    yield _labelled("refused", "Errors answered, by code or reason", "reason", metrics.refused)
    yield _labelled("fields_ignored", "Chat calls with a field without effect", "field", metrics.ignored.counts)
    yield _labelled("turns", "Committed turns: first, extending a parent, starting a branch", "kind", metrics.turns)
    yield _labelled("branches", "Turns that start a branch, by what differs", "reason", metrics.branches)
    yield _labelled("follow_ups", "Turns that follow an answer: extending, branch", "kind", metrics.follow_ups)
    yield _labelled("turns_ended", "Turns that were begun, by what became of them", "outcome", metrics.turns_ended)
    yield _labelled("turns_unwaited", "Turns whose caller had gone when they ended", "outcome", metrics.unwaited)
    yield _labelled("tokens", "Tokens of committed turns", "kind", metrics.tokens)
    yield _labelled("prefix_checks", "Prompts compared with an earlier turn's ids", "result", metrics.prefix_checks)
    yield CounterMetricFamily("rolloutfleet_generations", "Requests sent to the gateway", metrics.generations)
    yield _labelled("engine_failures", "Requests to the gateway without a turn", "code", metrics.engine_failures)
    yield CounterMetricFamily(
        "rolloutfleet_version_differences",
        "Turns whose engine named a weight version that this proxy did not know",
        metrics.version_differences,
    )
    yield from _cleanup(metrics.cleanup)


def _measured(metrics: Metrics) -> Iterator[Metric]:
    yield histograms.family(
        "rolloutfleet_call_seconds", "From a chat call's arrival to its end", "result", metrics.call_seconds
    )
    yield histograms.family("rolloutfleet_step_seconds", "Steps of committed turns", "step", metrics.step_seconds)
    yield histograms.family("rolloutfleet_turn_tokens", "Tokens of a committed turn", "kind", metrics.turn_tokens)
    yield GaugeMetricFamily("rolloutfleet_calls_in_flight", "Turns being made", metrics.in_flight)


def _cleanup(tally: CleanupTally) -> Iterator[Metric]:
    said = "Sessions that nobody used, or whose trajectories nobody took"
    yield _labelled("sessions_reclaimed", said, "reason", tally.reclaimed)
    yield CounterMetricFamily("rolloutfleet_dump_failures", "Attempts to reclaim a group that failed", tally.failures)
    said = "Groups that the last sweep could not reclaim"
    yield GaugeMetricFamily("rolloutfleet_groups_not_reclaimed", said, len(tally.failing))


def _present(present: Present) -> Iterator[Metric]:
    yield _gauges("calls_held", "Chat calls that wait, by what holds them", "by", present.held)
    yield GaugeMetricFamily("rolloutfleet_request_bytes", "What the requests under way hold", present.request_bytes)
    yield GaugeMetricFamily("rolloutfleet_draining", "1 while no new sessions are taken", int(present.draining))
    yield GaugeMetricFamily("rolloutfleet_paused", "1 while the weights are paused", int(present.paused))
    yield _gauges("weights", "Of the weights: version, run, epoch", "kind", present.weights)
    yield GaugeMetricFamily("rolloutfleet_sessions_open", "Open sessions", present.sessions_open)
    yield _ledger(present.ledger)
    yield GaugeMetricFamily("rolloutfleet_keys", "Session keys", present.ledger.get("keys", 0))
    yield _gauges("shards", "Shards: count, bytes", "kind", present.ledger.get("shards", {}))
    memory = {name.removesuffix("_bytes"): size for name, size in present.memory.items()}
    yield _gauges("memory_bytes", "Memory of the proxy's process tree", "kind", memory)
    yield _gauges("cache_bytes", "Caches", "cache", present.caches)
    yield GaugeMetricFamily("rolloutfleet_store_bytes", "The store's files", present.store_bytes)
    yield _gauges("queue_length", "What waits, by queue", "queue", present.queues)
    yield CounterMetricFamily("rolloutfleet_log_dropped", "Lines of the log that were lost", present.log_dropped)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _labelled(name: str, said: str, label: str, counts: Counter[str]) -> Metric:
    family = CounterMetricFamily(f"rolloutfleet_{name}", said, labels=[label])
    for value, n in counts.items():
        family.add_metric([value], n)
    return family


def _gauges(name: str, said: str, label: str, values: Mapping[str, int]) -> Metric:
    family = GaugeMetricFamily(f"rolloutfleet_{name}", said, labels=[label])
    for value, n in values.items():
        family.add_metric([value], n)
    return family


def _requests(counts: Counter[tuple[str, str, str]]) -> Metric:
    labels = ["method", "route", "status"]
    family = CounterMetricFamily("rolloutfleet_requests", "Requests that are no chat calls", labels=labels)
    for values, n in counts.items():
        family.add_metric(values, n)
    return family


def _ledger(audit: Mapping[str, Any]) -> Metric:
    family = GaugeMetricFamily(
        "rolloutfleet_ledger", "Promise 5: turns and sessions by what became of them", labels=["kind", "term", "reason"]
    )
    for kind in ("turns", "sessions"):
        for term, n in audit[kind].items():
            for reason, count in n.items() if isinstance(n, dict) else [("", n)]:
                family.add_metric([kind, term, reason], count)
    return family


def _software() -> Metric:
    versions = _versions()
    family = GaugeMetricFamily("rolloutfleet_info", "1; the versions of the software", labels=list(versions))
    family.add_metric(list(versions.values()), 1)
    return family


@cache
def _versions() -> dict[str, str]:
    return {
        "version": own_version(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: _version(name) for name in SOFTWARE[1:]},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
