"""The operator's own Prometheus metrics."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.policy.reasons import Metric
from rolloutfleet_operator.policy.seen import FleetSeen

_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._passes = Histogram(
            Metric.PASS_SECONDS, "Passes over a fleet: how long they took.", buckets=_BUCKETS, registry=self.registry
        )
        self._errors = Counter(Metric.PASS_ERRORS.removesuffix("_total"), "Passes that failed.", registry=self.registry)
        self._leading = Gauge(Metric.LEADING, "1 while this operator holds its Lease.", registry=self.registry)
        self._fleets = Gauge(
            Metric.FLEETS, "Fleets by condition and its status.", ["condition", "status"], registry=self.registry
        )
        self._problems = Gauge(Metric.PROBLEMS, "Fleets that have a problem.", ["reason"], registry=self.registry)
        self._restarts = Counter(
            Metric.RESTARTS.removesuffix("_total"), "Restarts seen.", ["fleet", "reason"], registry=self.registry
        )
        self._held = Gauge(Metric.SLOTS_HELD, "Proxies down by the operator's hand.", registry=self.registry)
        labels = ["namespace", "fleet", "pod"]
        self._rss = Gauge(Metric.PROXY_RSS, "Resident memory of a proxy's processes.", labels, registry=self.registry)
        self._budget = Gauge(
            Metric.PROXY_BUDGET, "memory.rssBudget of a fleet.", ["namespace", "fleet"], registry=self.registry
        )
        self._unpolled = Counter(
            Metric.POLLS_FAILED.removesuffix("_total"),
            "Questions to a proxy that it did not answer.",
            ["namespace", "fleet"],
            registry=self.registry,
        )
        self._statuses: dict[str, FleetStatus] = {}
        self._pods: dict[str, set[tuple[str, str, str]]] = {}

    def text(self) -> bytes:
        return generate_latest(self.registry)

    @contextmanager
    def timed(self) -> Iterator[None]:
        with self._passes.time():
            yield

    def failed(self) -> None:
        self._errors.inc()

    def leading(self, leads: bool) -> None:
        self._leading.set(int(leads))

    def held(self, slots: int) -> None:
        self._held.set(slots)

    def saw(self, seen: FleetSeen, status: FleetStatus, budget: int) -> None:
        """One pass's result."""
        self._count_restarts(seen.key, status)
        self._statuses[seen.key] = status
        self._budget.labels(seen.namespace, seen.name).set(budget)
        now = set()
        for pod in seen.pods:
            labels = (seen.namespace, seen.name, pod.name)
            if pod.stats is not None:
                self._rss.labels(*labels).set(pod.stats.rss)
                now.add(labels)
            elif pod.unanswered:
                self._unpolled.labels(seen.namespace, seen.name).inc()
        for labels in self._pods.get(seen.key, set()) - now:
            self._rss.remove(*labels)
        self._pods[seen.key] = now
        self._sum_up()

    def forget(self, namespace: str, name: str) -> None:
        key = f"{namespace}/{name}"
        self._statuses.pop(key, None)
        for labels in self._pods.pop(key, set()):
            self._rss.remove(*labels)
        self._sum_up()

    def _count_restarts(self, key: str, status: FleetStatus) -> None:
        before = self._statuses.get(key)
        for reason in ("memory", "requested", "rollout", "crash", "oom"):
            more = getattr(status.restarts, reason) - (getattr(before.restarts, reason) if before is not None else 0)
            if before is not None and more > 0:
                self._restarts.labels(key, reason).inc(more)

    def _sum_up(self) -> None:
        self._fleets.clear()
        self._problems.clear()
        for status in self._statuses.values():
            for condition in status.conditions:
                self._fleets.labels(condition.type, condition.status).inc()
            for reason in {problem.reason for problem in status.problems}:
                self._problems.labels(reason).inc()
