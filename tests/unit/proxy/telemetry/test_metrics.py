"""/metrics is what Prometheus reads, and says what was counted."""

from dataclasses import dataclass

import pytest
from prometheus_client import Info
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.parser import text_string_to_metric_families

from rolloutfleet_proxy.telemetry.metrics import COMMITTED, SECONDS, TOKENS, Metrics, by_label, total
from rolloutfleet_proxy.telemetry.software import versions

LABELS = {
    *("outcome", "result", "reason", "kind", "step", "code", "term", "cache", "queue", "by", "field"),
    *("method", "route", "status"),
}
SOFTWARE = {"version", "python", "sqlite", "renderers", "tokenizers", "aiohttp", "uvicorn"}


@dataclass(frozen=True)
class Declared:
    """A metric as Prometheus knows it, whether or not it has been counted yet."""

    name: str
    type: str
    labels: frozenset[str]
    documentation: str


def declared_metrics(metrics: Metrics) -> list[Declared]:
    found = []
    for collector in metrics.registry._collector_to_names:
        assert isinstance(collector, MetricWrapperBase)
        [family] = collector.describe()
        labels = frozenset(versions() if isinstance(collector, Info) else collector._labelnames)
        ending = {"counter": "_total", "info": "_info"}.get(family.type, "")
        found.append(Declared(family.name + ending, family.type, labels, family.documentation))
    return found


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def test_what_was_counted_can_be_read_again() -> None:
    metrics = Metrics()
    metrics.committed("first", prompt_tokens=100, completion_tokens=20, seconds=[0.001, 0.002, 0, 1.5, 0.0001, 0.0007])
    metrics.call_ended(COMMITTED, 1.6)
    metrics.call_ended("engine_error", 0.2)
    metrics.requests.labels("POST", "/export", "200").inc()
    read = samples(metrics.text())
    assert read["rolloutfleet_calls_total", (("outcome", "committed"),)] == 1
    assert read["rolloutfleet_call_seconds_count", (("result", "failed"),)] == 1
    assert read["rolloutfleet_call_seconds_sum", (("result", "answered"),)] == pytest.approx(1.6)
    assert read["rolloutfleet_step_seconds_bucket", (("le", "1.0"), ("step", "engine"))] == 0
    assert read["rolloutfleet_step_seconds_bucket", (("le", "2.5"), ("step", "engine"))] == 1
    assert read["rolloutfleet_turn_tokens_bucket", (("kind", "prompt"), ("le", "128.0"))] == 1
    assert read["rolloutfleet_requests_total", (("method", "POST"), ("route", "/export"), ("status", "200"))] == 1
    assert by_label(metrics.calls) == {"committed": 1, "engine_error": 1} and total(metrics.calls) == 2


def test_turns_are_in_flight_until_they_end_whatever_ends_them() -> None:
    metrics = Metrics()
    with pytest.raises(ValueError), metrics.call_in_flight():
        assert samples(metrics.text())["rolloutfleet_calls_in_flight", ()] == 1
        raise ValueError
    assert samples(metrics.text())["rolloutfleet_calls_in_flight", ()] == 0


def test_the_proxies_of_one_process_count_apart() -> None:
    one, other = Metrics(), Metrics()
    one.generations.inc()
    assert (total(one.generations), total(other.generations)) == (1, 0)


def test_when_a_series_began_is_no_series_of_its_own() -> None:
    assert b"_created" not in Metrics().text()


def test_every_metric_is_ours_with_labels_that_are_bounded() -> None:
    declared = declared_metrics(Metrics())
    for metric in declared:
        assert metric.name.startswith("rolloutfleet_") and metric.documentation
        assert metric.labels <= (SOFTWARE if metric.name == "rolloutfleet_info" else LABELS)
    assert len(declared) == len({metric.name for metric in declared}) > 30


def test_bounds_ascend() -> None:
    assert list(SECONDS) == sorted(set(SECONDS)) and list(TOKENS) == sorted(set(TOKENS))
