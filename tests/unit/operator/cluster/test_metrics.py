"""The operator's own metrics."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.status import ConditionStatus, FleetStatus, StoreStatus
from rolloutfleet_operator.cluster.metrics import OperatorMetrics
from rolloutfleet_operator.policy.observed import ObservedPod, ProxyStats
from rolloutfleet_operator.policy.reasons import Metric

POD = ObservedPod(
    name="math-proxy-0",
    uid="u",
    ordinal=0,
    created=0.0,
    template_hash="t1",
    stats=ProxyStats(rss=2**29),
)
STATUSES = st.dictionaries(st.sampled_from(("Ready", "Durable")), st.sampled_from(("True", "False", "Unknown")))


def status_of(conditions: dict[str, str]) -> FleetStatus:
    made = [
        ConditionStatus.model_validate({"type": kind, "status": status, "reason": "Any", "message": ""})
        for kind, status in conditions.items()
    ]
    return FleetStatus(conditions=made)


@given(st.lists(st.tuples(st.sampled_from(("a", "b", "c")), st.none() | STATUSES), max_size=30))
def test_fleets_are_counted_by_what_they_are_now(passes: list[tuple[str, dict[str, str] | None]]) -> None:
    """Passes over three fleets, which may go in between (None)."""
    metrics, now = OperatorMetrics(), dict[str, dict[str, str]]()
    for name, conditions in passes:
        if conditions is None:
            metrics.forget("default", name)
            now.pop(name, None)
        else:
            metrics.saw(("default", name), status_of(conditions), budget=1)
            now[name] = conditions
    counted = Counter(each for conditions in now.values() for each in conditions.items())
    shown = {
        (sample.labels["condition"], sample.labels["status"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.name == Metric.FLEETS
    }
    assert shown == dict(counted)


def test_a_lost_store_is_counted_once() -> None:
    metrics = OperatorMetrics()
    for lost in (3, 3, 4, 4):
        store = StoreStatus(ordinal=0, id="a", lost=lost)
        metrics.saw(("default", "math"), FleetStatus(stores=[store]), budget=1)
    assert metrics.registry.get_sample_value(Metric.STORES_LOST, {"fleet": "default/math"}) == 1


def test_nothing_is_shown_of_a_fleet_that_was_deleted() -> None:
    metrics = OperatorMetrics()
    for name in ("stays", "goes"):
        metrics.saw(("default", name), status_of({"Ready": "True"}), (POD,), 2**30)
    metrics.forget("default", "goes")
    samples = [
        f"{sample.name} {sample.labels['fleet']}"
        for family in metrics.registry.collect()
        for sample in family.samples
        if "fleet" in sample.labels
    ]
    assert samples == [f"{name} stays" for name in (Metric.PROXY_RSS, Metric.PROXY_BUDGET)]
