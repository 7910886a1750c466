"""The outcome of a session, and its reason. Pure."""

from typing import Final, NamedTuple

from rolloutfleet.wire import CloseSession, Outcome

LENGTH: Final = "length"
"""The reason of a session whose main loop's newest turn was cut at its token limit."""

GROUP_DEADLINE: Final = "group_deadline"
"""The reason of a session that was open at its group's deadline, when enough of the others had ended."""


class Ending(NamedTuple):
    """An outcome and its reason; an outcome of None is that of an earlier version."""

    outcome: Outcome | None
    reason: str | None


def ending(asked: CloseSession, *, met_limit: str | None) -> Ending:
    """The ending of a session that is closed. `met_limit` says what ended its newest call, where a limit did."""
    if asked.outcome is not None:
        return Ending(asked.outcome, asked.reason)
    if met_limit is None:
        return Ending("completed", asked.reason)
    return Ending("truncated", met_limit if asked.reason is None else asked.reason)
