"""Plain histograms: numbers that cost little to add to, and become Prometheus' only when asked for."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.core import HistogramMetricFamily


class Histogram:
    """Counts of values by the smallest bound that is not below them."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """`bounds` ascend; what is above the last is counted too."""
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def buckets(self) -> list[tuple[str, float]]:
        """(bound, how many values are not above it), as the exposition format has them."""
        names = [*map(str, self._bounds), "+Inf"]
        return list(zip(names, accumulate(self._counts), strict=True))

    @property
    def total(self) -> float:
        """The sum of all values."""
        return self._sum


def family(name: str, said: str, label: str, histograms: Mapping[str, Histogram]) -> HistogramMetricFamily:
    """One family of histograms, told apart by a label."""
    made = HistogramMetricFamily(name, said, labels=[label])
    for value, histogram in histograms.items():
        made.add_metric([value], histogram.buckets(), histogram.total)
    return made
