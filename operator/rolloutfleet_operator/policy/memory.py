"""Each proxy and its memory budget: when it is restarted for it, and when restarts are given up.

Samples are folded one by one into a `Run`. What outlives the operator is the proxy's own log of boots: the id of a
drain for memory encodes the attempt number, and the budget and template of that time. So a verdict is a function of a
run, that log and a clock, and after a restart of the operator only the run starts anew.

A failed poll is unknown: it neither counts nor breaks a run, for a proxy that is too busy to answer each time is no
better for it. Nor does a sample taken while the proxy drains.
"""

import hashlib
import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from rolloutfleet.settings import MIB
from rolloutfleet.spec import FleetSpec
from rolloutfleet.spec_for_proxies import MemorySpec
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.policy.actions import PatchMetadata
from rolloutfleet_operator.policy.observed import OVER_AGAIN_NOTE, TOO_SMALL_NOTE, ObservedPod, ProxyStats, Run
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason

FIRST_BOOT: Final = "first"
"""The reason of the boot that made the store, as the proxy's log has it."""
MIN_INTERVAL_SHARE: Final = 0.9
"""A sample that comes after this share of the interval is not too early."""
MOST_IN_A_ROW: Final = 2
"""After so many restarts in a row that did not help, no more are made."""

_ID = re.compile(r"memory-(\d+)-([0-9a-f]{8})-\d+")


def terms_of(spec: FleetSpec, template_hash: str) -> str:
    """Changes with the budget, and the template of the pods: a new one of either clears what came of the old."""
    return hashlib.sha256(f"{spec.memory.rss_budget} {template_hash}".encode()).hexdigest()[:8]


def sampled(run: Run, stats: ProxyStats | None, asked: MemorySpec, now: float) -> Run:
    """The run with one more poll, None where that failed. Another life of the proxy, and another budget, begin anew."""
    if stats is None:
        return run
    boot = stats.boots[-1].time if stats.boots else None
    if (run.budget, run.boot) != (asked.rss_budget, boot):
        run = Run(budget=asked.rss_budget, boot=boot)
    if stats.drain is not None or (run.at is not None and now - run.at < MIN_INTERVAL_SHARE * asked.interval):
        return run
    over = run.over + 1 if stats.rss > asked.rss_budget else 0
    full_at = None
    if over >= asked.samples:
        full_at = now if run.full_at is None else run.full_at
    return replace(run, taken=run.taken + 1, at=now, over=over, full_at=full_at)


class Standing(StrEnum):
    """How a proxy stands to its budget."""

    UNKNOWN = "unknown"
    WITHIN = "within"
    OVER = "over"
    """The newest sample was over, but not enough in a row."""
    COOLING = "cooling"
    """A restart is due when the cool-down is over."""
    DUE = "due"
    TOO_SMALL = "too small"
    """Restarts don't help: a person has to look."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    standing: Standing
    until: float | None = None
    """When the cool-down ends, or has ended."""
    attempt: int = 1
    """Which attempt in a row a restart now would be."""
    again: str | None = None
    """The id of a restart after which it was seen over its budget again before the cool-down ended; to be noted."""
    after_boot: int | None = None
    """Resident bytes just after the newest boot."""
    since: float | None = None
    """When the restart came to be due."""


def judge(pod: ObservedPod, spec: FleetSpec, terms: str, now: float) -> Verdict:
    """How the proxy stands to its budget now. Nothing is decided of one whose log of boots is not known.

    An ephemeral store does not outlive its pod, so the first boot may have followed a restart.
    """
    run, boots = pod.run, () if pod.stats is None else pod.stats.boots
    given_up = _given_up(pod).get(_TERMS) == terms
    standing = Standing.TOO_SMALL if given_up else Standing.UNKNOWN
    if not boots or run.taken == 0 or run.boot != boots[-1].time or run.budget != spec.memory.rss_budget:
        return Verdict(standing=standing, after_boot=boots[-1].rss_after if boots else None)
    newest = boots[-1]
    is_restart = newest.reason != FIRST_BOOT or spec.proxies.storage.ephemeral
    cool_until = newest.time + spec.memory.cooldown if is_restart else None
    before = attempt_of(newest.id, terms)
    early = run.full_at is not None and cool_until is not None and run.full_at <= cool_until
    again = newest.id if before > 0 and (early or pod.notes.get(OVER_AGAIN_NOTE) == newest.id) else None
    attempt = before + 1 if again is not None else 1
    verdict = Verdict(
        standing=_standing(run, cool_until, now),
        until=cool_until,
        attempt=attempt,
        again=again,
        after_boot=newest.rss_after,
        since=None if run.full_at is None else max(run.full_at, cool_until or 0.0),
    )
    if given_up or attempt > MOST_IN_A_ROW:
        return replace(verdict, standing=Standing.TOO_SMALL, since=None)
    return verdict


def restart_key(attempt: int, terms: str, now: float) -> str:
    """What follows `memory-` in the id of the drain that restarts a proxy for its memory."""
    return f"{attempt}-{terms}-{int(now)}"


def attempt_of(id: str | None, terms: str) -> int:
    """Which attempt in a row, under these terms, the restart of that id was; 0 for any other id."""
    found = _ID.fullmatch(id or "")
    return int(found[1]) if found and found[2] == terms else 0


def _standing(run: Run, cool_until: float | None, now: float) -> Standing:
    if run.full_at is None:
        return Standing.OVER if run.over else Standing.WITHIN
    return Standing.COOLING if cool_until is not None and now < cool_until else Standing.DUE


_TERMS, _AFTER_BOOT = "terms", "rss_after_boot"
_HOW: Final = {
    Standing.COOLING: "it is restarted after memory.cooldown",
    Standing.DUE: "it is restarted as soon as a slot is free",
}


def marks_of(members: Iterable[ObservedPod], verdicts: Mapping[str, Verdict], terms: str) -> Iterator[PatchMetadata]:
    """What the rule wants to find again after a restart of the operator."""
    for pod in members:
        verdict, notes = verdicts[pod.name], {}
        if verdict.again is not None and pod.notes.get(OVER_AGAIN_NOTE) != verdict.again:
            notes[OVER_AGAIN_NOTE] = verdict.again
        given_up = _given_up(pod)
        if verdict.standing is Standing.TOO_SMALL and given_up.get(_TERMS) != terms:
            notes[TOO_SMALL_NOTE] = json.dumps({_TERMS: terms, _AFTER_BOOT: verdict.after_boot})
        if notes:
            yield PatchMetadata(pod=pod.name, uid=pod.uid, annotations=notes)
        elif given_up and given_up.get(_TERMS) != terms:
            yield PatchMetadata(pod=pod.name, uid=pod.uid, annotations={TOO_SMALL_NOTE: None})


def problems_of(
    members: Iterable[ObservedPod], verdicts: Mapping[str, Verdict], busy: Container[str], earlier: FleetStatus
) -> Iterator[Problem]:
    """Who is over the budget, or can't be kept within it; `busy` are those that are on their way down or up.

    Too few samples say no other than the status before: a restart that has begun has not helped yet.
    """
    known = {each.pod for each in earlier.problems if each.reason == ProblemReason.OVER_BUDGET}
    for pod in members:
        verdict = verdicts[pod.name]
        if verdict.standing is Standing.TOO_SMALL:
            boot = _given_up(pod).get(_AFTER_BOOT) or verdict.after_boot
            had = f"; it had {boot // MIB} MiB right after its boot" if isinstance(boot, int) else ""
            message = f"two restarts in a row did not keep it within memory.rssBudget{had}. Raise the budget"
            yield Problem(ProblemReason.BUDGET_TOO_SMALL, message, pod.name)
        elif verdict.standing is not Standing.WITHIN and (verdict.standing in _HOW or pod.name in known):
            how = "it is being restarted" if pod.name in busy else _HOW.get(verdict.standing, "too few samples since")
            yield Problem(ProblemReason.OVER_BUDGET, f"over memory.rssBudget; {how}", pod.name)


def _given_up(pod: ObservedPod) -> dict[str, object]:
    """The note on that pod; what is no such note says nothing."""
    try:
        found = json.loads(pod.notes.get(TOO_SMALL_NOTE, "{}"))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
