"""The runbook has an entry for each reason, Event and metric, and for no other."""

import re
from enum import StrEnum

import pytest
from tests.paths import ROOT

from rolloutfleet_operator.policy import causes
from rolloutfleet_operator.policy.reasons import ConditionReason, CurrentAction, EventReason, Metric, ProblemReason
from rolloutfleet_operator.policy.steps import Step

RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()


def section(title: str) -> str:
    return RUNBOOK.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text: str) -> list[str]:
    return re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("kind", "title"),
    [(ConditionReason, "Reasons of conditions"), (EventReason, "Events"), (Metric, "Metrics of the operator")],
)
def test_every_name_has_its_row_and_no_other(kind: type[StrEnum], title: str) -> None:
    assert sorted(rows(section(title))) == sorted(each.value for each in kind)


def test_every_problem_has_its_entry_in_the_order_of_severity() -> None:
    assert re.findall(r"^### `(\w+)`$", section("Problems"), re.MULTILINE) == [each.value for each in ProblemReason]


def test_every_entry_says_more_than_its_name() -> None:
    for entry in section("Problems").split("\n### ")[1:]:
        assert len(entry.split()) > 12, entry


def test_every_action_is_explained() -> None:
    told = set(re.findall(r"`(\w+)`", section("Where to look").split("`current.action`")[1]))
    assert {*(each.value for each in CurrentAction), *(cause.action for cause in causes.CAUSES)} <= told


def test_every_counter_of_restarts_is_named() -> None:
    [row] = re.findall(r"^\| `rolloutfleet_operator_restarts_total` \|.*$", RUNBOOK, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", row)[1:]) == set(causes.counters())


def test_steps_are_said_as_events() -> None:
    assert {step.value for step in Step} <= {each.value for each in EventReason}


def test_no_name_is_used_twice() -> None:
    names = [each.value for kind in (ConditionReason, ProblemReason, EventReason) for each in kind]
    assert len(names) == len(set(names))
