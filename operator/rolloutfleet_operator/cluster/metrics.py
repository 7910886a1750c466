"""The operator's own Prometheus metrics."""

import collections
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.policy import causes
from rolloutfleet_operator.policy.observed import ObservedPod
from rolloutfleet_operator.policy.reasons import Metric

_BUCKETS: Final = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


_Labels = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _FleetFigures:
    """Figures of a fleet, until it is deleted or another operator's."""

    conditions: frozenset[_Labels]
    problems: frozenset[_Labels]
    restarts: Mapping[str, int]
    stores_lost: int
    rss: Mapping[_Labels, int]
    budget: Mapping[_Labels, int]


class OperatorMetrics(Collector):
    """What happens is counted where it does; how the fleets are is collected at a scrape."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.passes = Histogram(
            Metric.PASS_SECONDS, "Duration of a pass over a fleet.", buckets=_BUCKETS, registry=self.registry
        )
        self.errors = Counter(Metric.PASS_ERRORS, "Failed passes.", registry=self.registry)
        self.leading = Gauge(Metric.LEADING, "1 while this operator holds its Lease.", registry=self.registry)
        self.held = Gauge(Metric.SLOTS_HELD, "Restarts and updates in progress.", registry=self.registry)
        about = "Restarts of proxies, by reason."
        self._restarts = Counter(Metric.RESTARTS, about, ["fleet", "reason"], registry=self.registry)
        about = "Stores that a proxy on a claim was found without."
        self._stores_lost = Counter(Metric.STORES_LOST, about, ["fleet"], registry=self.registry)
        about = "Requests to a proxy that it did not answer."
        self._unpolled = Counter(Metric.POLLS_FAILED, about, ["namespace", "fleet"], registry=self.registry)
        self._fleets: dict[_Labels, _FleetFigures] = {}
        self.registry.register(self)

    def collect(self) -> Iterator[GaugeMetricFamily]:
        fleets = self._fleets.values()
        conditions = collections.Counter(labels for each in fleets for labels in each.conditions)
        problems = collections.Counter(labels for each in fleets for labels in each.problems)
        rss = collections.ChainMap(*(dict(each.rss) for each in fleets))
        budgets = collections.ChainMap(*(dict(each.budget) for each in fleets))
        of_fleet = ["namespace", "fleet"]
        for name, about, names, figures in (
            (Metric.FLEETS, "Fleets, by condition and its status.", ["condition", "status"], conditions),
            (Metric.PROBLEMS, "Fleets with a problem, by its reason.", ["reason"], problems),
            (Metric.PROXY_RSS, "Resident memory of a proxy's processes.", [*of_fleet, "pod"], rss),
            (Metric.PROXY_BUDGET, "memory.rssBudget of a fleet.", of_fleet, budgets),
        ):
            family = GaugeMetricFamily(name, about, labels=names)
            for labels, figure in figures.items():
                family.add_metric(labels, figure)
            yield family

    def saw(self, fleet: _Labels, status: FleetStatus, pods: Sequence[ObservedPod] = (), budget: int = 0) -> None:
        """One pass's result; of a fleet that can't be carried out it is the status alone."""
        figures = _FleetFigures(
            conditions=frozenset((each.type, each.status) for each in status.conditions),
            problems=frozenset((each.reason,) for each in status.problems),
            restarts={counter: status.restarts.count(counter) for counter in causes.counters()},
            stores_lost=sum(each.lost for each in status.stores),
            rss={(*fleet, pod.name): pod.stats.rss for pod in pods if pod.stats is not None},
            budget={fleet: budget} if budget else {},
        )
        before = self._fleets.get(fleet, figures)
        for counter, later in figures.restarts.items():
            if (more := later - before.restarts.get(counter, 0)) > 0:
                self._restarts.labels("/".join(fleet), counter).inc(more)
        if (lost := figures.stores_lost - before.stores_lost) > 0:
            self._stores_lost.labels("/".join(fleet)).inc(lost)
        self._fleets[fleet] = figures
        for pod in pods:
            if pod.stats is None and pod.unanswered:
                self._unpolled.labels(*fleet).inc()

    def forget(self, namespace: str, name: str) -> None:
        self._fleets.pop((namespace, name), None)
