"""What files in the form of dumps say of a session: its row, but for its key."""

from typing import Any

import msgspec

from rolloutfleet.dumps.form import DumpedSession
from rolloutfleet_proxy.store.transaction import Source, named_row

_decode = msgspec.json.Decoder().decode
_JSON = ("metadata", "limits", "agent_may", "sampling", "episode_turns")


def load_session(source: Source, session: int, *, aborted: str | None = None) -> DumpedSession:
    """What dumps say of a session; one that is open is `aborted` for this reason. Raises LookupError where it is not
    there."""
    row = named_row(
        source,
        "SELECT name AS session_id, group_name AS group_id, task_id, metadata, limits, agent_may, stale_after,"
        " await_reward, created_at, sampling, turns, tokens, trajectories, coalesce(place, id) AS place,"
        " ifnull(episode_turns, '[]') AS episode_turns,"
        " iif(state = 'open', 'aborted', outcome) AS outcome,"
        " iif(state = 'open', :aborted, outcome_reason) AS outcome_reason FROM sessions WHERE id = :session",
        {"session": session, "aborted": aborted},
    )
    if row is None:
        raise LookupError("the session is gone")
    return DumpedSession(**row | {name: _json(row[name]) for name in _JSON})


def _json(text: bytes | str | None) -> Any:
    return None if text is None else _decode(text)
