"""When a child is applied, and what a refusal is called."""

import json
from typing import Any

import pytest

from rolloutfleet_operator.cluster.api import ApiRefused
from rolloutfleet_operator.cluster.apply import ApplyReason, LastApply, due, refusal
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import MANAGED_BY, OPERATOR
from rolloutfleet_operator.policy.reasons import ProblemReason


def live(wanted: str = "h", *, uid: str = "u", **meta: Any) -> dict[str, Any]:
    annotations = {"rolloutfleet.dev/applied-hash": wanted}
    labels = {MANAGED_BY: OPERATOR}
    return {"metadata": {"uid": uid, "resourceVersion": "10", "annotations": annotations, "labels": labels, **meta}}


OURS = LastApply(mark=10, uid="u")


def test_a_child_as_our_last_apply_left_it_is_left_alone() -> None:
    assert due("h", live(), OURS) is None
    assert due("h", live(generation=3), LastApply(mark=3, uid="u")) is None


@pytest.mark.parametrize(
    ("there", "last", "why"),
    [
        (None, OURS, ApplyReason.MISSING),
        (live("other"), OURS, ApplyReason.CHANGED),
        (live(annotations=None), OURS, ApplyReason.CHANGED),
        (live(), LastApply(), ApplyReason.UNSURE),
        (live(uid="made-anew"), OURS, ApplyReason.UNSURE),
        (live(resourceVersion="11"), OURS, ApplyReason.EDITED),
        (live(generation=4), LastApply(mark=3, uid="u"), ApplyReason.EDITED),
        (live(generation=3, labels={}), LastApply(mark=3, uid="u"), ApplyReason.EDITED),
    ],
)
def test_it_is_applied_where_it_may_differ(there: dict[str, Any] | None, last: LastApply, why: ApplyReason) -> None:
    assert due("h", there, last) is why


def test_a_status_does_not_count_where_there_is_a_generation() -> None:
    assert due("h", live(generation=3, resourceVersion="999"), LastApply(mark=3, uid="u")) is None


def test_what_was_read_before_our_last_apply_says_nothing() -> None:
    assert due("h", live("older", resourceVersion="9"), OURS) is None


def test_the_order_of_keys_is_no_change() -> None:
    assert content_hash({"a": 1, "b": {"c": 2, "d": 3}}) == content_hash({"b": {"d": 3, "c": 2}, "a": 1})


def refused(status: int, message: str, *causes: tuple[str, str]) -> ApiRefused:
    listed = [{"field": field, "message": said} for field, said in causes]
    return ApiRefused(status, json.dumps({"message": message, "details": {"causes": listed}}))


@pytest.mark.parametrize(
    ("error", "reason", "said"),
    [
        (
            refused(500, "failed to create typed patch object (rl/math-proxy; apps/v1, Kind=StatefulSet): "
                    ".spec.template.spec.contaners: field not declared in schema"),
            ProblemReason.TEMPLATE_INVALID,
            "spec.proxies.podTemplate.spec.contaners: no such field",
        ),
        (
            refused(422, "invalid", ("spec.template.spec.containers[1].image", "Required value")),
            ProblemReason.TEMPLATE_INVALID,
            "spec.proxies.podTemplate.spec.containers[1].image: Required value",
        ),
        (
            refused(403, 'forbidden: exceeded quota: q'),
            ProblemReason.QUOTA_EXCEEDED,
            "StatefulSet math-proxy: forbidden",
        ),
        (
            refused(403, "statefulsets is forbidden"),
            ProblemReason.PERMISSION_DENIED,
            "StatefulSet math-proxy: statefulsets",
        ),
        (refused(422, "other", ("spec.replicas", "bad")), ProblemReason.CHILD_REFUSED, "StatefulSet math-proxy: other"),
        (ApiRefused(502, "<html>"), ProblemReason.CHILD_REFUSED, "StatefulSet math-proxy: <html>"),
    ],
)  # fmt: skip
def test_a_refusal_has_a_reason_of_its_own(error: ApiRefused, reason: ProblemReason, said: str) -> None:
    fault = refusal("StatefulSet", "math-proxy", error)
    assert fault.reason == reason
    assert fault.message.startswith(said)
