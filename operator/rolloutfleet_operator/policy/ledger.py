"""The restarts in a fleet's status: what is under way, written before it is begun, and what has been.

`status.restarts.last` is the operator's memory of its own deeds. An entry is there before the first step is taken, and
each step only if the status that was read has it; so an operator that dies in between finds what it was at, and begins
nothing twice. An entry is open while it has an id and no `after`. What did not happen after all is taken back.
"""

from collections.abc import Iterable

from rolloutfleet.status import MOST_RESTARTS, RestartsStatus, RestartStatus
from rolloutfleet_operator.policy import causes
from rolloutfleet_operator.policy.causes import Due
from rolloutfleet_operator.policy.times import text_of


def is_open(entry: RestartStatus) -> bool:
    """Whether that restart is under way."""
    return entry.id is not None and entry.after is None


def open_entries(restarts: RestartsStatus) -> dict[str, RestartStatus]:
    """What is under way, by pod."""
    return {entry.pod: entry for entry in restarts.last if is_open(entry)}


def has_room(restarts: RestartsStatus) -> bool:
    """Whether one more can be under way: as many as the status can hold."""
    return len(open_entries(restarts)) < MOST_RESTARTS


def opened(restarts: RestartsStatus, due: Due, now: float) -> RestartsStatus:
    """With one more under way; counted from now on."""
    pod = due.pod
    before = None if pod.stats is None else pod.stats.rss
    entry = RestartStatus(
        pod=pod.name, reason=due.cause.counter, time=text_of(now), before=before, id=due.id, uid=pod.uid
    )
    return noted(restarts, entry)


def closed(restarts: RestartsStatus, entry: RestartStatus, after: int) -> RestartsStatus:
    """With that one done; `after` is what the proxy has in memory now."""
    done = entry.model_copy(update={"after": after})
    return _with(restarts, (done if each is entry else each for each in restarts.last))


def withdrawn(restarts: RestartsStatus, entry: RestartStatus) -> RestartsStatus:
    """Without that one, which was not begun."""
    return _counted(restarts, entry.reason, -1, (each for each in restarts.last if each is not entry))


def noted(restarts: RestartsStatus, entry: RestartStatus) -> RestartsStatus:
    """With one more, which may have happened by itself."""
    return _counted(restarts, entry.reason, +1, (entry, *restarts.last))


def _counted(restarts: RestartsStatus, counter: str, by: int, last: Iterable[RestartStatus]) -> RestartsStatus:
    if counter in causes.counters():
        restarts = restarts.model_copy(update={counter: max(0, restarts.count(counter) + by)})
    return _with(restarts, last)


def _with(restarts: RestartsStatus, last: Iterable[RestartStatus]) -> RestartsStatus:
    """The newest, and whatever is open: that never makes room for what is over."""
    entries = sorted(last, key=lambda entry: entry.time, reverse=True)
    room = MOST_RESTARTS - sum(is_open(entry) for entry in entries)
    kept = []
    for entry in entries:
        if is_open(entry) or room > 0:
            kept.append(entry)
            room -= not is_open(entry)
    return restarts.model_copy(update={"last": kept})
