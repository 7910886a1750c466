"""The load beside an engine that runs already: its own count of tokens, and what is made of two runs."""

import pytest
from benchmarks import real_engine
from benchmarks.rigs import stack
from benchmarks.rigs.load import Answers, Result

COUNTED = """\
# HELP sglang:generation_tokens_total Number of generation tokens processed.
sglang:generation_tokens_total{engine_type="unified",is_streaming="false",model_name="bench"} 20.0
sglang:generation_tokens_total{engine_type="unified",is_streaming="true",model_name="bench"} 1.2e+03
sglang:prompt_tokens_total{engine_type="unified",is_streaming="false",model_name="bench"} 3.0
"""


def made(monkeypatch: pytest.MonkeyPatch, metrics: str) -> int:
    """By an engine that answers so when its metrics are asked for."""
    monkeypatch.setattr(stack, "get", {"http://an-engine/metrics": metrics.encode()}.__getitem__)
    return real_engine.tokens_made("http://an-engine")


def test_tokens_are_those_of_all_kinds_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, COUNTED) == 1220


def test_before_the_first_request_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(monkeypatch, "sglang:startup_time_seconds 21.0\n") == 0


def test_an_engine_that_does_not_count_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(real_engine.NoMetrics, match="--enable-metrics"):
        made(monkeypatch, "")


def run(target: str, *, rate: float, tokens: int) -> Result:
    window = {"rate": rate, "seconds": 10.0, "answers": rate * 10, "latency_ms": {"p50": 1.0, "p99": 2.0}}
    total = Answers(sessions=1, answers=10, first_turns=1, errors={})
    return Result(target=target, window=window, total=total, cpu={"proxy": 0.5, "gateway": 0.1}, engine_chunks=tokens)


def test_rates_are_set_against_each_other_window_by_window() -> None:
    alone = [run("engine", rate=10, tokens=1000), run("engine", rate=20, tokens=4000)]
    captured = [run("proxy", rate=9, tokens=950), run("proxy", rate=20, tokens=4000)]
    figures = {each.name: each.samples for each in real_engine.compared(64, alone, captured)}
    assert figures["served_at_64"] == pytest.approx((0.9, 1.0))
    assert figures["tokens_at_64"] == pytest.approx((0.95, 1.0))
    assert figures["proxy_tokens_at_64"] == pytest.approx((95, 400))
    assert figures["proxy_cpu_per_request_at_64"] == pytest.approx((0.5 / 90 * 1e6, 0.5 / 200 * 1e6))
