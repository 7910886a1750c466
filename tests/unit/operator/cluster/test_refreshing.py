"""Which pods are told to look at their mounted settings and keys, and that each is told once."""

from typing import Any

from rolloutfleet_operator.cluster.running_pods import NOTE, refreshes
from rolloutfleet_operator.policy.observed import ObservedPod, ProxyStats

SECRET: dict[str, Any] = {"metadata": {"resourceVersion": "7"}}


def settings(generation: int = 2) -> dict[str, Any]:
    note = {"rolloutfleet.dev/generation": str(generation)}
    return {"metadata": {"annotations": note}, "data": {"settings.json": str(generation)}}


def pod(taken: int | None = 1, **more: Any) -> ObservedPod:
    stats = None if taken is None else ProxyStats(rss=1, settings_generation=taken)
    return ObservedPod(name="p", uid="u", ordinal=0, created=0, template_hash="h", stats=stats, **more)


def test_a_proxy_that_is_behind_is_told_once() -> None:
    (mark,) = refreshes([pod()], settings(), SECRET, rotating=False)
    told = {NOTE: str(mark.annotations[NOTE])}
    assert list(refreshes([pod(notes=told)], settings(), SECRET, rotating=False)) == []
    assert list(refreshes([pod(notes=told)], settings(3), SECRET, rotating=False)) != []


def test_others_are_left_alone() -> None:
    quiet = [pod(2), pod(None), pod(terminating_since=1.0)]
    assert list(refreshes(quiet, settings(), SECRET, rotating=False)) == []
    assert list(refreshes([pod()], None, SECRET, rotating=False)) == []


def test_a_proxy_that_refuses_the_key_is_told_once_for_each_secret() -> None:
    locked = pod(None, key_refused=True)
    (mark,) = refreshes([locked], settings(), SECRET, rotating=False)
    told = {NOTE: str(mark.annotations[NOTE])}
    again = pod(None, key_refused=True, notes=told)
    assert list(refreshes([again], settings(), SECRET, rotating=False)) == []
    assert list(refreshes([again], settings(), {"metadata": {"resourceVersion": "8"}}, rotating=False)) != []


def test_in_a_rotation_each_step_is_told() -> None:
    (first,) = refreshes([pod(2)], settings(), SECRET, rotating=True)
    told = {NOTE: str(first.annotations[NOTE])}
    assert list(refreshes([pod(2, notes=told)], settings(), SECRET, rotating=True)) == []
    assert list(refreshes([pod(2, notes=told)], settings(), {"metadata": {"resourceVersion": "8"}}, rotating=True))
