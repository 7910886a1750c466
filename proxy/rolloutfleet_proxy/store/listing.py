"""Lists of sessions: those that are chosen by what their rows say, a page at a time."""

import sqlite3
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet.wire import ChosenSessions
from rolloutfleet_proxy.store.sessions import SUMMARY
from rolloutfleet_proxy.store.transaction import named_rows

_CONDITIONS: Final = {
    "state": "state = :state",
    "outcome": "outcome = :outcome",
    "task_id": "task_id = :task_id",
    "group_id": "group_name = :group_id",
    "rewarded": "(rewarded > 0) = :rewarded",
    "min_reward": "reward >= :min_reward",
    "max_reward": "reward <= :max_reward",
    "min_branches": "branches >= :min_branches",
    "min_turns": "turns >= :min_turns",
    "max_turns": "turns <= :max_turns",
    "min_tokens": "tokens >= :min_tokens",
    "max_tokens": "tokens <= :max_tokens",
    "min_version": "version_max >= :min_version",
    "max_version": "version_min <= :max_version",
}
"""By the name of what is asked. A row whose turns have not been summed up yet fulfils none that asks for their sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Which sessions are listed, and from where on."""

    chosen: ChosenSessions
    newest_first: bool = False
    after: int | None = None
    """The row that the page before ended with."""
    limit: int

    @property
    def is_chosen(self) -> bool:
        """Whether some are left out, so that to fill a page may take a look at every row."""
        return bool(self.chosen.said)


def list_sessions(connection: sqlite3.Connection, asked: Listing, *, served: float) -> list[tuple[int, dict[str, Any]]]:
    """(row id, what the list shows) of sessions in order of creation, or against it.

    `served` is the served clock now, in seconds.
    """
    said = asked.chosen.said
    conditions = ["1", *(_CONDITIONS[name] for name in said)]
    if asked.after is not None:
        conditions.append("id < :after" if asked.newest_first else "id > :after")
    rows = named_rows(
        connection,
        "SELECT id, name AS session_id, group_name AS group_id, task_id, state, outcome, outcome_reason,"
        " turns, tokens, trajectories,"
        f" created_at, max(0.0, :served - touched) AS idle_seconds, fate, train, {SUMMARY}"
        f" FROM sessions WHERE {' AND '.join(conditions)} ORDER BY id {'DESC' if asked.newest_first else 'ASC'}"
        " LIMIT :limit",
        {"served": served, "after": asked.after, "limit": asked.limit, **said},
    )
    return [(row.pop("id"), row | {"train": bool(row["train"])}) for row in rows]
