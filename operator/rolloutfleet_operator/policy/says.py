"""Events of what changed since the status that was read: problems that came and went, proxies that came and went."""

from collections.abc import Iterable, Iterator

from rolloutfleet.status import FleetStatus, ParkedStatus, RestartStatus
from rolloutfleet_operator.policy.actions import Say
from rolloutfleet_operator.policy.causes import CRASHES
from rolloutfleet_operator.policy.reasons import Happening
from rolloutfleet_operator.policy.troubles import Trouble


def of_problems(before: FleetStatus, now: Iterable[Trouble]) -> Iterator[Say]:
    """`now` are those that the status will show."""
    there = {(each.pod or None, each.reason.value): each for each in now}
    known = {(each.pod, each.reason) for each in before.problems}
    for (pod, reason), each in there.items():
        if (pod, reason) not in known:
            yield Say(reason=reason, message=each.message, pod=pod, warning=True)
    for pod, reason in sorted(known - there.keys(), key=lambda key: (key[1], key[0] or "")):
        yield Say(reason=Happening.PROBLEM_GONE, message=f"{reason} is over", pod=pod)


def of_crashes(entries: Iterable[RestartStatus]) -> Iterator[Say]:
    for entry in entries:
        message = next(crash.message for crash in CRASHES if crash.counter == entry.reason)
        yield Say(reason=Happening.CRASHED, message=message, pod=entry.pod, warning=True)


def of_parking(before: ParkedStatus, now: ParkedStatus) -> Iterator[Say]:
    """What was left on claims, and what is served again."""
    for ordinal in sorted(set(now.ordinals) - set(before.ordinals)):
        yield Say(reason=Happening.PARKED, message=f"what proxy {ordinal} holds stays on its claim until it is back")
    for ordinal in sorted(set(before.ordinals) - set(now.ordinals)):
        yield Say(reason=Happening.UNPARKED, message=f"proxy {ordinal} is back with what it held")
