"""Names of fields without effect: bounded by their own request, and none that a caller made up in the metric."""

from rolloutfleet_proxy.telemetry import ignored_fields
from rolloutfleet_proxy.telemetry.ignored_fields import LABELS, MOST_NAMES, OTHER, one_of_each
from rolloutfleet_proxy.telemetry.metrics import Metrics, by_label


def test_a_request_names_its_own_fields_whatever_others_sent() -> None:
    many = [f"field_{number}" for number in range(MOST_NAMES + 10)]
    assert ignored_fields.names(many) == [*many[:MOST_NAMES], OTHER]
    assert ignored_fields.names(["one_more", "field_70"]) == ["one_more", "field_70"]
    assert ignored_fields.names(many[:MOST_NAMES]) == many[:MOST_NAMES]


def test_names_are_plain_and_without_places() -> None:
    paths = ["messages[0].content[1].x", "messages[7].content[0].x", "a b", "x\r\ny: 1", "é", "x" * 65]
    assert ignored_fields.names(paths) == ["messages.content.x", OTHER]
    assert one_of_each(paths) == ("messages[0].content[1].x", "a b")


def test_the_metric_has_no_name_that_a_caller_made_up() -> None:
    metrics = Metrics()
    for paths in (["sk-a-secret", "verbosity"], ["sk-another", "x" * 65], ["messages[3].content[0].annotations"]):
        metrics.ignored(paths)
    assert by_label(metrics.fields_ignored) == {OTHER: 2, "verbosity": 1, "messages.content.annotations": 1}
    assert all(ignored_fields.names([label]) == [label] for label in LABELS)
