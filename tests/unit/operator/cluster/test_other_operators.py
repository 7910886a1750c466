"""Which of several operators has which fleets."""

from typing import Any

from rolloutfleet_operator.cluster.children.names import OPERATOR
from rolloutfleet_operator.cluster.lease import SCOPE
from rolloutfleet_operator.cluster.other_operators import OtherOperators, others_of
from rolloutfleet_operator.policy.reasons import ProblemReason

NOW = 1_800_000_000.0
RENEWED, LONG_AGO = "2027-01-15T07:59:55.000000Z", "2027-01-15T07:50:00.000000Z"


def lease(
    namespace: str, *, born: str = "09", scope: str | None = None, holder: str = "pod", renewed: str = RENEWED
) -> Any:
    marks = {} if scope is None else {SCOPE: scope}
    created = f"2027-01-{born}T00:00:00Z"
    meta = {"namespace": namespace, "name": OPERATOR, "creationTimestamp": created, "annotations": marks}
    return {"metadata": meta, "spec": {"holderIdentity": holder, "renewTime": renewed}}


def seen_by(namespace: str, *leases: Any, scope: str | None = None) -> OtherOperators:
    return others_of(leases, own=(namespace, OPERATOR), scope=scope, now=NOW)


def test_alone_everything_is_ours() -> None:
    assert seen_by("a", lease("a")) == seen_by("a") == OtherOperators()
    assert seen_by("a").leave_us("anywhere") and seen_by("a").problems() == ()


def test_one_of_the_whole_cluster_leaves_namespaces_to_their_own() -> None:
    there = lease("a"), lease("b", scope="rl")
    wide, narrow = seen_by("a", *there), seen_by("b", *there, scope="rl")
    assert not wide.leave_us("rl") and wide.leave_us("other") and wide.problems() == ()
    assert narrow.leave_us("rl") and narrow.problems() == ()


def test_of_two_with_the_same_fleets_the_older_goes_first_and_says_so() -> None:
    for scope in (None, "rl"):
        there = lease("b", born="03", scope=scope), lease("a", born="04", scope=scope)
        older, younger = (seen_by(name, *there, scope=scope) for name in ("b", "a"))
        assert older.leave_us("rl") and not younger.leave_us("rl")
        (problem,) = older.problems()
        assert problem.reason == ProblemReason.TWO_OPERATORS and f"a/{OPERATOR}" in problem.message
    same_second = lease("b"), lease("a")
    assert [seen_by(name, *same_second).goes_first for name in ("a", "b")] == [True, False]


def test_who_has_no_lease_yet_comes_after_those_that_have() -> None:
    assert not seen_by("a", lease("b")).goes_first


def test_a_lease_that_nobody_renews_counts_for_nothing() -> None:
    gone = lease("b", born="01", holder="", renewed=LONG_AGO), lease("c", born="01", renewed=LONG_AGO)
    never = {**lease("d", scope="rl"), "spec": {}}
    assert seen_by("a", lease("a"), *gone, never) == OtherOperators()


def test_a_lease_that_was_just_let_go_counts_until_the_next_operator_takes_it() -> None:
    assert not seen_by("a", lease("a"), lease("b", scope="rl", holder="")).leave_us("rl")
    assert not seen_by("a", lease("a"), lease("b", born="01", holder="")).goes_first
