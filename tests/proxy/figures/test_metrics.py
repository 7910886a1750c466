"""/metrics is what Prometheus reads, and says what was counted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from rolloutfleet_proxy.figures.exposition import Present, exposition
from rolloutfleet_proxy.figures.histograms import Histogram
from rolloutfleet_proxy.figures.metrics import COMMITTED, SECONDS, TOKENS, Metrics

LABELS = {
    *("outcome", "result", "reason", "kind", "step", "code", "term", "cache", "queue", "by"),
    *("method", "route", "status", "le"),
}
SOFTWARE = {"version", "python", "sqlite", "renderers", "tokenizers", "aiohttp", "uvicorn"}


def samples(text: bytes) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


@given(
    st.lists(st.floats(0, 1000), unique=True, min_size=1, max_size=8).map(sorted),
    st.lists(st.floats(0, 2000), max_size=50),
)
def test_a_histograms_buckets_count_what_is_not_above_their_bound(bounds: list[float], values: list[float]) -> None:
    histogram = Histogram(bounds)
    for value in values:
        histogram.add(value)
    expected: list[tuple[str, float]] = [(str(bound), sum(value <= bound for value in values)) for bound in bounds]
    assert histogram.buckets() == [*expected, ("+Inf", len(values))]
    assert histogram.total == pytest.approx(sum(values))


def test_what_was_counted_can_be_read_again() -> None:
    metrics = Metrics()
    metrics.committed("first", prompt_tokens=100, completion_tokens=20, seconds=[0.001, 0.002, 0, 1.5, 0.0001, 0.0007])
    metrics.call_ended(COMMITTED, 1.6)
    metrics.call_ended("engine_error", 0.2)
    metrics.request_ended("POST", "/export", 200)
    ledger: dict[str, Any] = {"turns": {"created": 1, "discarded": {"deleted": 2}}, "sessions": {"live": 3}}
    read = samples(exposition(metrics, Present(ledger=ledger, queues={"log": 4}, held={"drain": 5})))
    assert read["rolloutfleet_calls_total", (("outcome", "committed"),)] == 1
    assert read["rolloutfleet_call_seconds_count", (("result", "failed"),)] == 1
    assert read["rolloutfleet_call_seconds_sum", (("result", "answered"),)] == pytest.approx(1.6)
    assert read["rolloutfleet_step_seconds_bucket", (("le", "1.0"), ("step", "engine"))] == 0
    assert read["rolloutfleet_step_seconds_bucket", (("le", "2.5"), ("step", "engine"))] == 1
    assert read["rolloutfleet_turn_tokens_bucket", (("kind", "prompt"), ("le", "128.0"))] == 1
    assert read["rolloutfleet_requests_total", (("method", "POST"), ("route", "/export"), ("status", "200"))] == 1
    assert read["rolloutfleet_ledger", (("kind", "turns"), ("reason", "deleted"), ("term", "discarded"))] == 2
    assert read["rolloutfleet_queue_length", (("queue", "log"),)] == 4
    assert read["rolloutfleet_calls_held", (("by", "drain"),)] == 5


def test_every_metric_is_ours_with_labels_that_are_bounded() -> None:
    for family in text_string_to_metric_families(exposition(Metrics(), Present()).decode()):
        assert family.name.startswith("rolloutfleet_") and family.documentation
        allowed = LABELS if family.name != "rolloutfleet_info" else SOFTWARE
        assert all(set(sample.labels) <= allowed for sample in family.samples)


def test_bounds_ascend() -> None:
    assert list(SECONDS) == sorted(set(SECONDS)) and list(TOKENS) == sorted(set(TOKENS))
