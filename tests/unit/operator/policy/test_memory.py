"""The rule "Restart on memory", in the words of the design."""

import json
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.operator.policy.fleets import fleet

from rolloutfleet.spec import FleetSpec
from rolloutfleet.wire import Boot, Drain
from rolloutfleet_operator.policy.memory import (
    MOST_IN_A_ROW,
    Standing,
    Verdict,
    attempt_of,
    judge,
    restart_key,
    sampled,
    terms_of,
)
from rolloutfleet_operator.policy.observed import NO_RUN, OVER_AGAIN_NOTE, TOO_SMALL_NOTE, ObservedPod, ProxyStats, Run

GIB = 2**30
ASKED = {"rssBudget": "4Gi", "samples": 3, "cooldown": "600s", "interval": "1s"}
SPEC = fleet(memory=ASKED)
TERMS = terms_of(SPEC, "t1")
STARTED = 1000.0
FIRST = Boot(time=STARTED, reason="first", rss_after=GIB)
OVER, WITHIN, FAILED = 5 * GIB, GIB, None
EVERY = 15.0


def polled(rss: int | None, *, boot: float = STARTED, draining: bool = False) -> ProxyStats | None:
    """A poll; one that failed has no reading."""
    drain = Drain(id="d", mode="cordon", since=boot) if draining else None
    return None if rss is None else ProxyStats(rss=rss, boots=(Boot(time=boot, reason="first"),), drain=drain)


def run_of(
    *readings: int | None, boot: float = STARTED, start: float = 0.0, spec: FleetSpec = SPEC, run: Run = NO_RUN
) -> Run:
    """The run after these readings, one each 15 s from `start` seconds after the boot."""
    for place, rss in enumerate(readings):
        run = sampled(run, polled(rss, boot=boot), spec.memory, boot + start + EVERY * (place + 1))
    return run


def pod_with(run: Run, boots: Sequence[Boot], *, again: str | None = None, given_up: str | None = None) -> ObservedPod:
    """A pod with that log of boots, and what the rule has noted on it; no boots: its proxy gave no answer."""
    notes = {} if again is None else {OVER_AGAIN_NOTE: again}
    notes |= {} if given_up is None else {TOO_SMALL_NOTE: json.dumps({"terms": given_up})}
    stats = ProxyStats(rss=WITHIN, boots=tuple(boots)) if boots else None
    return ObservedPod(
        name="p", uid="u", ordinal=0, created=STARTED, template_hash="t1", run=run, notes=notes, stats=stats
    )


def verdict(
    run: Run,
    *boots: Boot,
    now: float = STARTED + 1e6,
    spec: FleetSpec = SPEC,
    terms: str = TERMS,
    again: str | None = None,
    given_up: str | None = None,
) -> Verdict:
    pod = pod_with(run, boots or (FIRST,), again=again, given_up=given_up)
    return judge(pod, spec, terms, now)


def restarted(row: int, at: float) -> Boot:
    return Boot(
        time=at,
        reason="planned: memory",
        id=f"memory-{restart_key(row, TERMS, at - 5)}",
        rss_before=OVER,
        rss_after=3 * GIB,
    )


def test_over_budget_for_so_many_samples_in_a_row_makes_a_restart_due() -> None:
    assert verdict(run_of(WITHIN)).standing is Standing.WITHIN
    assert verdict(run_of(OVER)).standing is Standing.OVER
    assert verdict(run_of(OVER, OVER)).standing is Standing.OVER
    assert verdict(run_of(OVER, OVER, OVER)).standing is Standing.DUE
    assert verdict(run_of(OVER, OVER, WITHIN, OVER, OVER)).standing is Standing.OVER
    assert verdict(run_of(OVER, OVER, OVER, WITHIN)).standing is Standing.WITHIN


def test_exactly_the_budget_is_within_it() -> None:
    assert verdict(run_of(*[4 * GIB] * 5)).standing is Standing.WITHIN
    assert verdict(run_of(*[4 * GIB + 1] * 3)).standing is Standing.DUE


def test_a_failed_poll_is_unknown_it_neither_counts_nor_breaks_a_run() -> None:
    assert verdict(run_of(OVER, FAILED, FAILED)).standing is Standing.OVER
    assert verdict(run_of(FAILED, FAILED, FAILED)).standing is Standing.UNKNOWN
    assert verdict(run_of(OVER, FAILED, OVER, FAILED, OVER)).standing is Standing.DUE


def test_samples_while_draining_do_not_count() -> None:
    run = run_of(OVER, OVER)
    drained = sampled(run, polled(OVER, draining=True), SPEC.memory, 2000.0)
    assert drained == run
    freed = sampled(run_of(OVER, OVER, OVER), polled(WITHIN, draining=True), SPEC.memory, 2000.0)
    assert verdict(freed).standing is Standing.DUE


def test_samples_that_come_too_close_together_are_one() -> None:
    asked = fleet(memory={**ASKED, "interval": "15s"}).memory
    run = NO_RUN
    for place in range(29):
        run = sampled(run, polled(OVER), asked, STARTED + place)
    assert (run.over, run.full_at) == (3, STARTED + 28)


def test_a_run_belongs_to_one_life_and_one_budget() -> None:
    run = run_of(OVER, OVER)
    assert sampled(run, polled(OVER, boot=STARTED + 50), SPEC.memory, 2000.0).over == 1
    assert sampled(run, polled(OVER), fleet(memory={**ASKED, "rssBudget": "2Gi"}).memory, 2000.0).over == 1
    # A run of the life before says nothing of this one.
    assert verdict(run_of(OVER, OVER, OVER), FIRST, restarted(1, 2000.0)).standing is Standing.UNKNOWN


def test_it_waits_for_the_end_of_the_cool_down() -> None:
    boot = Boot(time=5000.0, reason="crash: was killed by SIGKILL")
    run = run_of(OVER, OVER, OVER, boot=boot.time)
    assert verdict(run, FIRST, boot, now=5599.0) == Verdict(
        standing=Standing.COOLING, until=5600.0, attempt=1, since=5600.0
    )
    assert verdict(run, FIRST, boot, now=5600.0).standing is Standing.DUE


def test_the_first_boot_is_no_restart_save_where_a_store_may_have_gone_with_its_proxy() -> None:
    run = run_of(OVER, OVER, OVER)
    now = STARTED + 60.0
    assert verdict(run, now=now).standing is Standing.DUE
    assert verdict(run, now=now, spec=fleet(memory=ASKED, ephemeral=True)).standing is Standing.COOLING


def test_two_restarts_in_a_row_that_do_not_help_are_the_last() -> None:
    full = (OVER, OVER, OVER)
    first = verdict(run_of(*full))
    assert (first.standing, first.attempt) == (Standing.DUE, 1)

    one = restarted(1, 5000.0)
    again = verdict(run_of(*full, boot=one.time), FIRST, one, now=5045.0)
    assert (again.standing, again.attempt, again.again) == (Standing.COOLING, 2, one.id)
    assert verdict(run_of(*full, boot=one.time), FIRST, one, now=5600.0).attempt == 2

    two = restarted(2, 5610.0)
    given_up = verdict(run_of(*full, boot=two.time), FIRST, one, two, now=5655.0)
    assert given_up.standing is Standing.TOO_SMALL
    assert given_up.after_boot == 3 * GIB


def test_a_run_that_is_full_only_after_the_cool_down_is_no_failure_of_the_restart() -> None:
    one = restarted(1, 5000.0)
    late = run_of(OVER, OVER, OVER, boot=one.time, start=580.0)
    assert (verdict(late, FIRST, one).standing, verdict(late, FIRST, one).attempt) == (Standing.DUE, 1)
    two = restarted(2, 5000.0)
    assert verdict(run_of(OVER, OVER, OVER, boot=two.time, start=580.0), one, two).standing is Standing.DUE


def test_a_full_run_within_the_cool_down_counts_though_memory_fell_for_a_moment() -> None:
    one = restarted(1, 5000.0)
    broken = run_of(WITHIN, OVER, OVER, OVER, boot=one.time, start=2000.0)
    assert verdict(broken, FIRST, one).attempt == 1
    assert verdict(broken, FIRST, one, again=one.id).attempt == 2
    assert verdict(broken, FIRST, one, again="memory-1-00000000-1").attempt == 1


def test_what_lies_between_two_restarts_breaks_the_row() -> None:
    crash = Boot(time=6000.0, reason="crash: was killed by SIGKILL")
    run = run_of(OVER, OVER, OVER, boot=crash.time)
    assert verdict(run, restarted(1, 4000.0), restarted(2, 5000.0), crash).attempt == 1


@pytest.mark.parametrize(("budget", "template"), [(5 * GIB - 1, "t1"), (4 * GIB, "t2")])
def test_a_changed_budget_or_template_clears_it(budget: int, template: str) -> None:
    other = fleet(memory={**ASKED, "rssBudget": budget})
    terms = terms_of(other, template)
    two = restarted(2, 5000.0)
    full = run_of(OVER, OVER, OVER, boot=two.time, spec=other)
    assert verdict(full, two, spec=other, terms=terms, now=5045.0, given_up=TERMS).standing is Standing.COOLING
    assert verdict(full, two, spec=other, terms=terms, given_up=TERMS).attempt == 1
    assert verdict(run_of(WITHIN, boot=two.time), two, given_up=TERMS).standing is Standing.TOO_SMALL


def test_what_was_given_up_stays_so_while_nothing_is_known() -> None:
    assert judge(pod_with(NO_RUN, (), given_up=TERMS), SPEC, TERMS, 0.0).standing is Standing.TOO_SMALL
    assert judge(pod_with(NO_RUN, ()), SPEC, TERMS, 0.0).standing is Standing.UNKNOWN


def test_an_id_says_its_place_in_the_row_to_those_of_the_same_terms() -> None:
    assert attempt_of(f"memory-{restart_key(2, TERMS, 5000.5)}", TERMS) == 2
    assert attempt_of(f"memory-{restart_key(2, TERMS, 5000.5)}", terms_of(SPEC, "t2")) == 0
    assert [attempt_of(id, TERMS) for id in (None, "", "weights-7", "memory-x")] == [0, 0, 0, 0]


@given(
    readings=st.lists(st.tuples(st.sampled_from([OVER, WITHIN, FAILED]), st.booleans()), max_size=40),
    samples=st.integers(1, 5),
)
@settings(deadline=None)
def test_a_run_is_full_exactly_when_the_last_known_samples_are_over(
    readings: list[tuple[int | None, bool]], samples: int
) -> None:
    asked = fleet(memory={**ASKED, "samples": samples}).memory
    run = NO_RUN
    for place, (rss, draining) in enumerate(readings):
        run = sampled(run, polled(rss, draining=draining), asked, STARTED + place)
    known = [rss for rss, draining in readings if rss is not None and not draining]
    tail = known[-samples:]
    assert (run.full_at is not None) == (len(tail) == samples and all(rss == OVER for rss in tail))


@given(
    gaps=st.lists(st.tuples(st.integers(10, 2000), st.integers(0, 1500)), min_size=1, max_size=12),
)
@settings(deadline=None)
def test_it_is_never_restarted_within_the_cool_down_nor_more_than_so_often_in_vain(gaps: list[tuple[int, int]]) -> None:
    """A proxy that leaks at will: `gaps` are seconds until its run is full, and then until it gets a slot."""
    boots, now, vain, again = [FIRST], STARTED, 0, None
    for until_full, slot in gaps:
        boot = boots[-1]
        run = Run(budget=4 * GIB, boot=boot.time, taken=3, over=3, full_at=boot.time + until_full)
        early = boot is not FIRST and until_full <= 600.0
        vain = vain + 1 if early else 0
        found = verdict(run, *boots, again=again, now=boot.time + until_full)
        again = found.again or again
        if found.standing is Standing.TOO_SMALL:
            assert vain == MOST_IN_A_ROW
            return
        assert vain < MOST_IN_A_ROW
        now = max(boot.time + until_full, found.until or 0.0) + slot
        due = verdict(run, *boots, again=again, now=now)
        assert due.standing is Standing.DUE
        assert boot is FIRST or now - boot.time >= 600.0
        boots.append(restarted(due.attempt, now))
