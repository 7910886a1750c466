"""Whose memory grows in place."""

from typing import Any

from rolloutfleet_operator.cluster.running_pods import grown


def of(limit: str, *, template: str = "h", **meta: Any) -> dict[str, Any]:
    resources = {"limits": {"memory": limit, "cpu": "1"}, "requests": {"memory": "1Gi"}}
    annotations = {"rolloutfleet.dev/template-hash": template}
    container = {"name": "proxy", "resources": resources}
    return {"metadata": {"annotations": annotations, **meta}, "spec": {"containers": [{"name": "side"}, container]}}


def test_a_pod_with_less_than_its_template_says_gets_it() -> None:
    assert grown(of("1Gi"), of("2Gi")) == {"limits": {"memory": "2Gi"}, "requests": {"memory": "1Gi"}}


def test_nothing_is_taken_and_nothing_written_at_rest() -> None:
    assert grown(of("2Gi"), of("2Gi")) is None
    assert grown(of("2048Mi"), of("2Gi")) is None
    assert grown(of("2Gi"), of("1Gi")) is None


def test_pods_that_go_anyway_are_left_alone() -> None:
    assert grown(of("1Gi", template="older"), of("2Gi")) is None
    assert grown(of("1Gi", deletionTimestamp="2026-11-21T18:00:00Z"), of("2Gi")) is None
