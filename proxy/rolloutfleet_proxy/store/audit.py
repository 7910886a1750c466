"""Promise 5: the durable counters, and live and leased recounted from the rows."""

import sqlite3
from typing import Any

from rolloutfleet_proxy.domain.ledger import (
    ACKNOWLEDGED,
    CREATED,
    DISCARDED,
    DUMPED,
    IMPORTED,
    LEASED,
    LIVE,
    SESSIONS,
    TERMS,
    TURNS,
)
from rolloutfleet_proxy.store.tally import load_missing

# Turns whose session is gone are still to be deleted (`remains`), and of a deleted session what was open is discarded.
_RECOUNT = {
    TURNS: (
        "SELECT CASE trajectories.state WHEN 'leased' THEN 'leased' ELSE 'live' END AS held, count(*) FROM turns"
        " JOIN sessions ON sessions.id = turns.session"
        " LEFT JOIN trajectories ON trajectories.session = turns.session AND trajectories.number = turns.trajectory"
        " WHERE turns.state = 'live' AND CASE WHEN trajectories.state IS NULL THEN sessions.state != 'deleted'"
        " ELSE trajectories.state IN ('ready', 'damaged', 'leased') END"
        " GROUP BY held"
    ),
    SESSIONS: "SELECT fate, count(*) FROM sessions WHERE fate IN ('live', 'leased') GROUP BY fate",
}


def ledger(connection: sqlite3.Connection) -> dict[str, Any]:
    """What `/audit` answers, from the durable counters alone: a few rows, however much the store holds.

    Nothing is recounted, so there is no `balanced`.
    """
    held = dict(connection.execute("SELECT name, value FROM facts WHERE name IN ('shard_bytes', 'shards', 'keys')"))
    return {
        **{kind: _sums(connection, kind) for kind in (TURNS, SESSIONS)},
        "shards": {"count": _held(connection, held, "shards"), "bytes": held["shard_bytes"]},
        "keys": _held(connection, held, "keys", table="sessions"),
    }


def _held(connection: sqlite3.Connection, held: dict[str, Any], name: str, *, table: str = "shards") -> int:
    """From the counter; a file that was opened on a full disk may have none yet."""
    if name in held:
        return int(held[name])
    return int(connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def audit(connection: sqlite3.Connection) -> dict[str, Any]:
    """The sums of promise 5, as the API shows them: every term from its own counter, none derived from the others.

    `balanced` is true where, for turns and for sessions, created + imported equals the sum of the other terms,
    and the rows recounted say the same of live and leased as the counters, and nothing is `missing`. That reads all
    turns, so it takes as long as there are many.
    """
    sums = {kind: _sums(connection, kind) for kind in _RECOUNT}
    shards, nbytes = connection.execute("SELECT count(*), coalesce(sum(bytes), 0) FROM shards").fetchone()
    (keys,) = connection.execute("SELECT count(*) FROM sessions").fetchone()
    missing = load_missing(connection)
    balanced = all(_balanced(connection, kind, sums[kind]) for kind in sums) and not any(missing.values())
    return {
        **sums,
        "shards": {"count": shards, "bytes": nbytes},
        "keys": keys,
        "missing": missing,
        "balanced": balanced,
    }


def _sums(connection: sqlite3.Connection, kind: str) -> dict[str, Any]:
    sums: dict[str, Any] = dict.fromkeys(TERMS, 0) | {DISCARDED: {}}
    for term, reason, n in connection.execute("SELECT term, reason, n FROM ledger WHERE kind = ?", (kind,)):
        if term == DISCARDED:
            sums[DISCARDED][reason] = n
        else:
            sums[term] = n
    return sums


def _balanced(connection: sqlite3.Connection, kind: str, sums: dict[str, Any]) -> bool:
    came = sums[CREATED] + sums[IMPORTED]
    went = sums[LIVE] + sums[LEASED] + sums[ACKNOWLEDGED] + sums[DUMPED] + sum(sums[DISCARDED].values())
    recounted = {LIVE: 0, LEASED: 0} | dict(connection.execute(_RECOUNT[kind]).fetchall())
    return bool(came == went and all(sums[term] == n for term, n in recounted.items()))
