"""The operator's own Prometheus metrics."""

import collections
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.policy import causes
from rolloutfleet_operator.policy.observed import ObservedFleet
from rolloutfleet_operator.policy.reasons import Metric

_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


_Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Counted:
    """What is counted of a fleet's status."""

    conditions: frozenset[_Labels] = frozenset()
    problems: frozenset[_Labels] = frozenset()
    restarts: Mapping[str, int] = field(default_factory=dict)


_NOTHING: Final = _Counted()


def _said(status: FleetStatus) -> _Counted:
    return _Counted(
        conditions=frozenset((each.type, each.status) for each in status.conditions),
        problems=frozenset((each.reason,) for each in status.problems),
        restarts={counter: status.restarts.count(counter) for counter in causes.counters()},
    )


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
        self._said: dict[str, _Counted] = {}
        self._by_condition: collections.Counter[_Labels] = collections.Counter()
        self._by_problem: collections.Counter[_Labels] = collections.Counter()
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

    def saw(self, observed: ObservedFleet, status: FleetStatus, budget: int) -> None:
        """One pass's result."""
        said = _said(status)
        self._count(observed.key, said)
        self._count_restarts(observed.key, said)
        self._said[observed.key] = said
        self._budget.labels(observed.namespace, observed.name).set(budget)
        now = set()
        for pod in observed.pods:
            labels = (observed.namespace, observed.name, pod.name)
            if pod.stats is not None:
                self._rss.labels(*labels).set(pod.stats.rss)
                now.add(labels)
            elif pod.unanswered:
                self._unpolled.labels(observed.namespace, observed.name).inc()
        for labels in self._pods.get(observed.key, set()) - now:
            self._rss.remove(*labels)
        self._pods[observed.key] = now

    def forget(self, namespace: str, name: str) -> None:
        key = f"{namespace}/{name}"
        self._count(key, _NOTHING)
        self._said.pop(key, None)
        for labels in self._pods.pop(key, set()):
            self._rss.remove(*labels)

    def _count_restarts(self, key: str, now: _Counted) -> None:
        before = self._said.get(key)
        if before is None:
            return
        for counter, later in now.restarts.items():
            earlier = before.restarts.get(counter, 0)
            if later > earlier:
                self._restarts.labels(key, counter).inc(later - earlier)

    def _count(self, key: str, now: _Counted) -> None:
        """Move a fleet from what it was counted under to what it is under now."""
        before = self._said.get(key, _NOTHING)
        _move(self._fleets, self._by_condition, before.conditions, now.conditions)
        _move(self._problems, self._by_problem, before.problems, now.problems)


def _move(gauge: Gauge, counted: collections.Counter[_Labels], before: Set[_Labels], now: Set[_Labels]) -> None:
    """What nothing is counted under any more is not shown."""
    counted.update(now - before)
    counted.subtract(before - now)
    for labels in before ^ now:
        if counted[labels]:
            gauge.labels(*labels).set(counted[labels])
        else:
            del counted[labels]
            gauge.remove(*labels)
