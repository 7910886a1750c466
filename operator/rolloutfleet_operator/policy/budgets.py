"""How each proxy stands to its memory budget: the rule of `memory.py`, fed from pods and their notes."""

import json
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Final

from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.policy import memory
from rolloutfleet_operator.policy.actions import Mark
from rolloutfleet_operator.policy.memory import Known, Rule, Standing, Verdict
from rolloutfleet_operator.policy.reasons import Problem
from rolloutfleet_operator.policy.seen import OVER_AGAIN_NOTE, TOO_SMALL_NOTE, PodSeen
from rolloutfleet_operator.policy.troubles import Trouble, trouble

_TERMS, _AFTER_BOOT = "terms", "rss_after_boot"
_HOW: Final = {
    Standing.COOLING: "it is restarted after memory.cooldown",
    Standing.DUE: "it is restarted as soon as it may be down",
}


def rule_of(spec: FleetSpec, template_hash: str) -> Rule:
    """The fleet's rule, for `memory.sampled` and all that follows."""
    asked = spec.memory
    return Rule(
        budget=asked.rss_budget,
        samples=asked.samples,
        cooldown=asked.cooldown,
        interval=asked.interval,
        template=template_hash,
    )


def verdicts_of(members: Iterable[PodSeen], spec: FleetSpec, rule: Rule, now: float) -> dict[str, Verdict]:
    """By pod."""
    return {pod.name: memory.judge(pod.run, _known(pod, spec), rule, now) for pod in members}


def marks_of(members: Iterable[PodSeen], verdicts: Mapping[str, Verdict], rule: Rule) -> Iterator[Mark]:
    """What the rule wants to find again after a restart of the operator."""
    for pod in members:
        verdict, notes = verdicts[pod.name], {}
        if verdict.again is not None and pod.notes.get(OVER_AGAIN_NOTE) != verdict.again:
            notes[OVER_AGAIN_NOTE] = verdict.again
        given_up = _given_up(pod)
        if verdict.standing is Standing.TOO_SMALL and given_up.get(_TERMS) != rule.terms:
            notes[TOO_SMALL_NOTE] = json.dumps({_TERMS: rule.terms, _AFTER_BOOT: verdict.after_boot})
        if notes:
            yield Mark(pod=pod.name, uid=pod.uid, annotations=notes)
        elif given_up and given_up.get(_TERMS) != rule.terms:
            yield Mark(pod=pod.name, uid=pod.uid, annotations={TOO_SMALL_NOTE: None})


def troubles_of(
    members: Iterable[PodSeen], verdicts: Mapping[str, Verdict], busy: Container[str], earlier: FleetStatus
) -> Iterator[Trouble]:
    """Who is over the budget, or can't be kept within it; `busy` are those that are on their way down or up.

    Too few samples say no other than the status before: a restart that has begun has not helped yet.
    """
    known = {each.pod for each in earlier.problems if each.reason == Problem.OVER_BUDGET}
    for pod in members:
        verdict = verdicts[pod.name]
        if verdict.standing is Standing.TOO_SMALL:
            boot = _given_up(pod).get(_AFTER_BOOT) or verdict.after_boot
            had = f"; it had {boot // 2**20} MiB just after its boot" if isinstance(boot, int) else ""
            message = f"two restarts in a row did not keep it within memory.rssBudget{had}. Raise the budget"
            yield trouble(Problem.BUDGET_TOO_SMALL, message, pod.name)
        elif verdict.standing is not Standing.WITHIN and (verdict.standing in _HOW or pod.name in known):
            how = "it is being restarted" if pod.name in busy else _HOW.get(verdict.standing, "too few samples since")
            yield trouble(Problem.OVER_BUDGET, f"over memory.rssBudget; {how}", pod.name)


def _known(pod: PodSeen, spec: FleetSpec) -> Known:
    terms = _given_up(pod).get(_TERMS)
    return Known(
        boots=() if pod.stats is None else pod.stats.boots,
        again=pod.notes.get(OVER_AGAIN_NOTE),
        given_up=terms if isinstance(terms, str) else None,
        first_boot_counts=spec.proxies.storage.ephemeral,
    )


def _given_up(pod: PodSeen) -> dict[str, object]:
    """The note on that pod; what is no such note says nothing."""
    try:
        found = json.loads(pod.notes.get(TOO_SMALL_NOTE, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
