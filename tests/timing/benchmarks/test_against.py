"""Two checkouts' proxies are measured by turns, and both are held to what they were sent."""

import pytest
from benchmarks import against
from benchmarks.rigs import binaries
from benchmarks.rigs.load import Shape
from tests.paths import ROOT


def test_a_checkout_is_set_against_another_in_the_same_rounds() -> None:
    binaries.build()
    figures = {
        each.name: each for each in against.against(ROOT, pairs=1, shape=Shape(in_flight=8, window=1, warmup=0.5))
    }
    assert [each.line for each in figures.values() if each.check and not each.met] == []
    this, other = (figures[f"{name}_cpu_per_request"].median for name in ("this", "other"))
    assert figures["this_vs_other"].median == pytest.approx(this / other)
    assert all(figures[f"turns_committed_{name}"].median > 0 for name in ("this", "other"))
