"""What is understood of a fleet's resource, which another release may have written."""

from typing import Any

import pytest

from rolloutfleet_operator.cluster.reading import SpecInvalid, status_of, understood

SPEC: dict[str, Any] = {"model": "m", "engine": {"gpus": 0}}


def test_fields_of_another_release_are_left_out_and_named() -> None:
    newer = {**SPEC, "brandNew": {"a": 1}, "sessions": {"staleAfter": "90s", "warp": 9}}
    spec, unknown = understood({"spec": newer})
    assert sorted(unknown) == ["spec.brandNew", "spec.sessions.warp"]
    assert spec.sessions.stale_after == 90
    assert understood({"spec": SPEC})[1] == ()
    assert newer["brandNew"] == {"a": 1}, "what was read stays as it is"


def test_choices_of_another_release_stand_for_what_disturbs_least() -> None:
    newer = {**SPEC, "updatePolicy": "OnSundays", "memory": {"restart": "Node"}}
    spec, unknown = understood({"spec": newer})
    assert sorted(unknown) == ["spec.memory.restart", "spec.updatePolicy"]
    assert (spec.update_policy, spec.memory.restart) == ("OnRequest", "Process")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"brandNew": 1, "memory": {"samples": 0}}, "spec.memory.samples: "),
        ({"brandNew": 1, "gateway": {"engines": {"byMagic": True}}}, "name the engines by either selector or urls"),
    ],
)
def test_what_can_not_be_carried_out_without_them_is_still_a_mistake(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecInvalid, match=said):
        understood({"spec": {**SPEC, **fields}})


def test_a_part_of_the_status_that_can_not_be_read_costs_that_part_alone() -> None:
    read = status_of({"status": {"restarts": {"memory": 3}, "current": "another shape", "problems": [{"reason": 1}]}})
    assert read.restarts.memory == 3
    assert read.current is None
    assert read.problems == []


def test_names_in_the_status_that_are_not_known_are_taken() -> None:
    condition = {"type": "Newer", "status": "Perhaps", "reason": "SoItIs"}
    current = {"action": "Newer", "since": "2026-11-21T08:00:00Z", "waitingFor": "moon"}
    read = status_of({"status": {"conditions": [condition], "current": current}})
    assert read.conditions[0].type == "Newer"
    assert read.current is not None and read.current.waiting_for == "moon"
