"""Prefix checks are read from the text that /metrics gives."""

from benchmarks.rigs.accounts import prefix_checks

from rolloutfleet_proxy.telemetry.metrics import Metrics


def test_prefix_checks_are_read_by_result() -> None:
    metrics = Metrics()
    metrics.prefix_checks.labels("passed").inc(1234)
    metrics.prefix_checks.labels("failed").inc(2)
    assert prefix_checks(metrics.text().decode()) == {"passed": 1234, "failed": 2}
