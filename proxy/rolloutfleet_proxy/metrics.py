"""What /metrics shows of this process's life. The durable counters are the ledger's; they are added at a scrape."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

COMMITTED = "committed"
REPLAYED = "replayed"
JOINED = "joined"


class Metrics:
    """One registry an app: two apps in a process don't add into each other."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "rolloutfleet_calls",
            "Chat calls by what came of them: committed, replayed, joined, or the error's code",
            ["outcome"],
            registry=self.registry,
        )
        self.refused = Counter(
            "rolloutfleet_refused",
            "Calls answered with an error, by its code, or by the reason where an engine's reply was refused",
            ["reason"],
            registry=self.registry,
        )
        self.prefix_checks = Counter(
            "rolloutfleet_prefix_checks",
            "Token-by-token checks of a committed turn's prompt against its parent's ids",
            ["result"],
            registry=self.registry,
        )
        self.turns = Counter(
            "rolloutfleet_turns",
            "Committed turns: first of their session, extending a parent, or starting a branch",
            ["kind"],
            registry=self.registry,
        )
        self.tokens = Counter("rolloutfleet_tokens", "Tokens of committed turns", ["kind"], registry=self.registry)
        self.generations = Counter("rolloutfleet_generations", "Requests sent to the gateway", registry=self.registry)
        self.version_differences = Counter(
            "rolloutfleet_version_differences",
            "Turns whose engine named a weight version that this proxy did not know",
            registry=self.registry,
        )
        self.in_flight_now = 0
        in_flight = Gauge("rolloutfleet_calls_in_flight", "Chat calls under way", registry=self.registry)
        in_flight.set_function(lambda: self.in_flight_now)
        self._errors: dict[str, int] = {}
        self._checks = {"made": 0, "passed": 0}

    @contextmanager
    def call_in_flight(self) -> Iterator[None]:
        """Count a call as under way until the block ends."""
        self.in_flight_now += 1
        try:
            yield
        finally:
            self.in_flight_now -= 1

    def check_prefix(self, *, made: int, passed: int) -> None:
        """Count a committed turn's checks against its candidates' ids."""
        self.prefix_checks.labels("passed").inc(passed)
        self.prefix_checks.labels("failed").inc(made - passed)
        self._checks["made"] += made
        self._checks["passed"] += passed

    @property
    def checks(self) -> dict[str, int]:
        """Prefix checks of committed turns since this process started."""
        return dict(self._checks)

    def refuse(self, reason: str) -> None:
        """Count an answer that is an error."""
        self.refused.labels(reason).inc()
        self._errors[reason] = self._errors.get(reason, 0) + 1

    @property
    def refusals(self) -> dict[str, int]:
        """Errors answered since this process started, by reason."""
        return dict(self._errors)

    def exposition(self, audit: dict[str, Any], memory: dict[str, int]) -> bytes:
        """The text that Prometheus reads: this process's figures, then the ledger and the memory."""
        gauges = CollectorRegistry()
        gauges.register(_Families(_ledger(audit)))
        gauges.register(_Families(_memory(memory)))
        return generate_latest(self.registry) + generate_latest(gauges)


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def _ledger(audit: dict[str, Any]) -> Iterator[Metric]:
    family = GaugeMetricFamily(
        "rolloutfleet_ledger", "Promise 5: turns and sessions by what became of them", labels=["kind", "term", "reason"]
    )
    for kind in ("turns", "sessions"):
        for term, n in audit[kind].items():
            for reason, count in n.items() if isinstance(n, dict) else [("", n)]:
                family.add_metric([kind, term, reason], count)
    yield family


def _memory(memory: dict[str, int]) -> Iterator[Metric]:
    family = GaugeMetricFamily("rolloutfleet_memory_bytes", "Memory of the proxy's process tree", labels=["kind"])
    for name, size in memory.items():
        family.add_metric([name.removesuffix("_bytes")], size)
    yield family
