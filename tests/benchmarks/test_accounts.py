"""Prefix checks are read from the text that /metrics gives."""

from benchmarks.rigs.accounts import prefix_checks

from rolloutfleet_proxy.figures.exposition import Present, exposition
from rolloutfleet_proxy.figures.metrics import Metrics


def test_prefix_checks_are_read_by_result() -> None:
    metrics = Metrics()
    metrics.prefix_checks["passed"] += 1234
    metrics.prefix_checks["failed"] += 2
    assert prefix_checks(exposition(metrics, Present()).decode()) == {"passed": 1234, "failed": 2}
