"""What this process counts of its own life, and /metrics. The durable counters are the ledger's, added at a scrape.

Counts are plain numbers, changed on the event loop alone; they become Prometheus' families only when asked for.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

COMMITTED = "committed"
REPLAYED = "replayed"
JOINED = "joined"


@dataclass(slots=True)
class CleanupTally:
    """What the sweeps of this process did to sessions that nobody used."""

    reclaimed: Counter[str] = field(default_factory=Counter)
    """Sessions by reason."""
    failures: int = 0
    """Attempts to dump a group that failed."""
    failing: dict[str, str] = field(default_factory=dict)
    """Why each group that the last sweep could not reclaim is still there, by group_id."""

    @property
    def error(self) -> str | None:
        """Of one that is failing."""
        return next(iter(self.failing.values()), None)


class Metrics:
    """Counts since the process started."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Chat calls by what came of them: committed, replayed, joined, or an error's code."""
        self.refused: Counter[str] = Counter()
        """Answers that were errors, by code; a reply that was no evidence also by the reason."""
        self.turns: Counter[str] = Counter()
        """Committed turns: first of their session, extending a parent, or starting a branch."""
        self.tokens: Counter[str] = Counter()
        """Tokens of committed turns: prompt, completion."""
        self.prefix_checks: Counter[str] = Counter()
        """Token-by-token checks of a committed turn's prompt against an earlier turn's ids: passed, failed."""
        self.passed_on: Counter[str] = Counter()
        """Chat calls of other proxies' sessions: answered, cut_short, or an error's code."""
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """Requests that are no chat calls, by method, the path's template, and status."""
        self.unwaited: Counter[str] = Counter()
        """Turns whose caller had gone when they ended: committed, or an error's code."""
        self.engine_failures: Counter[str] = Counter()
        """Requests to the gateway that brought no turn, by error code."""
        self.generations = 0
        """Requests sent to the gateway."""
        self.version_differences = 0
        """Turns whose engine named a weight version that this proxy did not know."""
        self.cleanup = CleanupTally()
        self.in_flight = 0
        """Chat calls under way."""

    @contextmanager
    def call_in_flight(self) -> Iterator[None]:
        """Count a call as under way until the block ends."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def sent(self) -> None:
        """Count a request to the gateway."""
        self.generations += 1

    def refuse(self, reason: str) -> None:
        """Count an answer that is an error."""
        self.refused[reason] += 1

    def call_ended(self, outcome: str, seconds: float) -> None:
        """Count a chat call that is over."""
        self.calls[outcome] += 1

    def request_ended(self, method: str, route: str, status: int) -> None:
        """Count another request that is over."""
        self.requests[method, route, str(status)] += 1

    def engine_failed(self, code: str) -> None:
        """Count a request to the gateway that failed."""
        self.engine_failures[code] += 1

    def committed(self, kind: str, *, prompt_tokens: int, completion_tokens: int, seconds: Sequence[float]) -> None:
        """Count a committed turn; `seconds` are those of its steps."""
        self.turns[kind] += 1
        self.tokens["prompt"] += prompt_tokens
        self.tokens["completion"] += completion_tokens

    def exposition(self, audit: dict[str, Any], memory: dict[str, int]) -> bytes:
        """The text that Prometheus reads: this process's counts, the ledger, and the memory."""
        registry = CollectorRegistry()
        registry.register(_Families([*self._counts(), _ledger(audit), _memory(memory)]))
        return generate_latest(registry)

    def _counts(self) -> Iterator[Metric]:
        yield _labelled("calls", "Chat calls by what came of them", "outcome", self.calls)
        yield _labelled("refused", "Errors answered, by code or reason", "reason", self.refused)
        yield _labelled("turns", "Committed turns: first, extending a parent, starting a branch", "kind", self.turns)
        yield _labelled("tokens", "Tokens of committed turns", "kind", self.tokens)
        yield _labelled("prefix_checks", "Prompts compared with an earlier turn's ids", "result", self.prefix_checks)
        yield CounterMetricFamily("rolloutfleet_generations", "Requests sent to the gateway", self.generations)
        yield CounterMetricFamily(
            "rolloutfleet_version_differences",
            "Turns whose engine named a weight version that this proxy did not know",
            self.version_differences,
        )
        yield _labelled(
            "sessions_reclaimed",
            "Sessions that nobody used, or whose trajectories nobody took",
            "reason",
            self.cleanup.reclaimed,
        )
        yield CounterMetricFamily(
            "rolloutfleet_dump_failures", "Attempts to reclaim a group that failed", self.cleanup.failures
        )
        yield GaugeMetricFamily(
            "rolloutfleet_groups_not_reclaimed",
            "Groups that the last sweep could not reclaim",
            len(self.cleanup.failing),
        )
        yield GaugeMetricFamily("rolloutfleet_calls_in_flight", "Chat calls under way", self.in_flight)


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


def _ledger(audit: dict[str, Any]) -> Metric:
    family = GaugeMetricFamily(
        "rolloutfleet_ledger", "Promise 5: turns and sessions by what became of them", labels=["kind", "term", "reason"]
    )
    for kind in ("turns", "sessions"):
        for term, n in audit[kind].items():
            for reason, count in n.items() if isinstance(n, dict) else [("", n)]:
                family.add_metric([kind, term, reason], count)
    return family


def _memory(memory: dict[str, int]) -> Metric:
    family = GaugeMetricFamily("rolloutfleet_memory_bytes", "Memory of the proxy's process tree", labels=["kind"])
    for name, size in memory.items():
        family.add_metric([name.removesuffix("_bytes")], size)
    return family
