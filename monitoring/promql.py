"""Series in PromQL, by the metrics that proxy and operator declare: what is not declared is an error."""

from collections.abc import Sequence
from typing import Final

from prometheus_client.metrics import MetricWrapperBase

from rolloutfleet_operator.policy.reasons import Metric
from rolloutfleet_proxy.telemetry.metrics import Metrics

PROXY: Final = Metrics()
"""Attributes are the metrics; see `of`."""

FLEET: Final = "namespace, fleet"
POD: Final = "namespace, fleet, pod"
"""Labels that the scrape adds: on a cluster the PodMonitor, on one machine `rolloutfleet prometheus`."""
SCOPE: Final = 'namespace=~"$namespace",fleet=~"$fleet"'
"""The dashboard's variables."""

_ENDINGS: Final = {"counter": "_total", "info": "_info"}


class NotDeclared(Exception):
    """A label that the metric does not have."""


def of(metric: MetricWrapperBase, *, ending: str = "", scope: str = "", **labels: str) -> str:
    """A proxy's series; `ending` is that of a histogram's parts, a label has one value, or one of `a|b`.

    Raises NotDeclared.
    """
    [family] = metric.describe()
    known = {*metric._labelnames, *(["le"] if family.type == "histogram" else [])}
    if unknown := labels.keys() - known:
        raise NotDeclared(f"{family.name} has no label {', '.join(sorted(unknown))}")
    return _series(family.name + (ending or _ENDINGS.get(family.type, "")), labels, scope)


def of_operator(metric: Metric, *, ending: str = "", scope: str = "") -> str:
    """An operator's series."""
    return _series(metric.value + ending, {}, scope)


def by(labels: str, expression: str, how: str = "sum") -> str:
    return f"{how} by ({labels}) ({expression})"


def per_second(series: str, window: str) -> str:
    return f"rate({series}[{window}])"


def increase(series: str, window: str) -> str:
    return f"increase({series}[{window}])"


def ratio(part: str, whole: str) -> str:
    return f"{part} / {whole}"


def total(one: str, other: str) -> str:
    return f"({one} + {other})"


def share(part: str, whole: str) -> str:
    """Of counters by the same labels; 0 where no part was counted yet, nothing where the whole is 0."""
    return f"({part} or 0 * {whole}) / ({whole} > 0)"


def quantile(q: float, metric: MetricWrapperBase, window: str, *, labels: Sequence[str] = (), scope: str = "") -> str:
    """Of a histogram, over all proxies of a fleet."""
    buckets = per_second(of(metric, ending="_bucket", scope=scope), window)
    return f"histogram_quantile({q}, {by(', '.join([FLEET, *labels, 'le']), buckets)})"


def _series(name: str, labels: dict[str, str], scope: str) -> str:
    chosen = ",".join([*(_chosen(*each) for each in labels.items()), *([scope] if scope else [])])
    return f"{name}{{{chosen}}}" if chosen else name


def _chosen(label: str, value: str) -> str:
    return f'{label}=~"{value}"' if "|" in value else f'{label}="{value}"'
