"""The proxy stands beside two gateways by turns: the fixed yardstick, and the one that fleets have."""

import pytest
from benchmarks.rigs import binaries, compared, machine
from benchmarks.rigs.plan import Plan

PLAN = Plan(pairs=1, warmup=0.5, window=1.0)


def test_what_the_proxy_takes_is_told_beside_both_gateways_from_the_same_rounds() -> None:
    binaries.build()
    outcome = compared.capture_vs_gateway(PLAN)
    figures = {figure.name: figure for figure in outcome.figures}
    assert [figure.line for figure in outcome.figures if figure.check and not figure.met] == []
    assert [run["target"] for run in outcome.runs] == ["yardstick", "gateway", "proxy"] * PLAN.pairs
    for name, gateway in (("capture_vs_gateway", "gateway_cpu_per_request"), ("capture_vs_smg", "smg_cpu_per_request")):
        spent = zip(figures[gateway].samples, figures["proxy_cpu_per_request"].samples, strict=True)
        assert figures[name].samples == pytest.approx([alone / captured for alone, captured in spent])
    assert "sglang_router.launch_router" in outcome.commands["yardstick"]
    assert "smg.launch_router" in outcome.commands["gateway"]


def test_a_record_says_which_yardstick_it_was_and_that_never_changes() -> None:
    assert machine.describe()["versions"]["sglang-router"] == "0.3.2"
