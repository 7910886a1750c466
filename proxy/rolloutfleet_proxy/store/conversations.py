"""What is read of a branch to show it: turns without what is long, and pieces of their messages and tokens.

A read is short whatever a turn holds: messages come one by one out of SQLite, which does not hold the interpreter while
it parses them, and tokens by their numbers.
"""

import json
import sqlite3
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from rolloutfleet_proxy.domain.errors import TurnDamaged
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.turn import Delivery, Extras
from rolloutfleet_proxy.store import annotations
from rolloutfleet_proxy.store.checksums import SOUND
from rolloutfleet_proxy.store.transaction import named_row, named_rows
from rolloutfleet_proxy.store.turns import by_token, extras_without

LONGEST_MESSAGE: Final = 1 << 20
"""Characters of a message's JSON, up to which it is read whole."""
BEGINNING: Final = 1 << 18
"""Characters of the content of one that is longer."""
LONGEST_MESSAGES: Final = 16 << 20
"""Bytes of a turn's messages, up to which SQLite parses them."""
_EXTRAS: Final = extras_without("top_logprobs", "kept", "parts")
"""But for what may be long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnShape:
    """A turn but for its messages and tokens."""

    number: int
    name: str
    parent: str | None
    trajectory: int | None
    trajectory_state: str | None
    discarded: bool
    delivered: bool
    mixed_cache: bool
    reward: float | None
    created_at: float
    finish_reason: str
    start: int
    length: int
    prompt_tokens: int
    new_prompt_tokens: int
    completion_tokens: int
    branch_reason: Any
    lineage: Lineage
    extras: Extras
    """But for what may be long."""
    leases: list[dict[str, Any]]
    tools: dict[str, Any] | None
    """Where they are no longer than LONGEST_MESSAGE."""
    messages_bytes: int

    @property
    def own_messages(self) -> int:
        """How many it adds to its parent's, its output included."""
        return self.length - self.start


class MessagePart(NamedTuple):
    """A message as JSON; `cut` is how long it is where that is its beginning alone."""

    json: bytes
    cut: int | None


class TokenPart(NamedTuple):
    """Consecutive tokens of a turn."""

    prompt_ids: "array[int]"
    output_ids: "array[int]"
    logprobs: "array[float]"
    versions: list[int]
    annotations: dict[str, "array[float]"]


def find_session(connection: sqlite3.Connection, name: str) -> int | None:
    """The row of a session; None where it is not there."""
    found = connection.execute("SELECT id FROM sessions WHERE name = ?", (name,)).fetchone()
    return None if found is None else int(found[0])


def find_turn(connection: sqlite3.Connection, session: int, name: str | None) -> tuple[int, str] | None:
    """(number, name) of a session's turn, the newest unless one is named."""
    found: tuple[int, str] | None = connection.execute(
        "SELECT number, name FROM turns WHERE session = ? AND (name = ? OR ? IS NULL) ORDER BY number DESC LIMIT 1",
        (session, name, name),
    ).fetchone()
    return found


def load_branch(
    connection: sqlite3.Connection, session: int, last: int, *, after: int, most: int
) -> list[tuple[int, str]]:
    """(number, name) of the turns from the root to `last`, those behind number `after`."""
    return connection.execute(
        "WITH RECURSIVE branch (number, name, parent) AS ("
        " SELECT number, name, parent FROM turns WHERE session = :session AND number = :last UNION ALL"
        " SELECT turns.number, turns.name, turns.parent FROM branch"
        " JOIN turns ON session = :session AND turns.number = branch.parent)"
        " SELECT number, name FROM branch WHERE number > :after ORDER BY number LIMIT :most",
        {"session": session, "last": last, "after": after, "most": most},
    ).fetchall()


def load_numbers(connection: sqlite3.Connection, session: int, *, after: int, most: int) -> list[tuple[int, str]]:
    """(number, name) of a session's turns behind number `after`, in order of commit."""
    return connection.execute(
        "SELECT number, name FROM turns WHERE session = ? AND number > ? ORDER BY number LIMIT ?",
        (session, after, most),
    ).fetchall()


def check_turn(connection: sqlite3.Connection, session: int, number: int) -> None:
    """Raises TurnDamaged where a turn that is there is not as it was committed."""
    asked = f"SELECT {SOUND} FROM turns WHERE session = ? AND number = ?"
    if not connection.execute(asked, (session, number)).fetchone()[0]:
        raise TurnDamaged(number)


def load_shape(connection: sqlite3.Connection, session: int, number: int) -> TurnShape:
    """A turn that is there."""
    row = named_row(
        connection,
        "SELECT turns.number, turns.name, parents.name AS parent, turns.trajectory,"
        " trajectories.state AS trajectory_state, turns.state != 'live' AS discarded, turns.delivered,"
        " turns.mixed_cache, turns.reward, turns.created_at, turns.finish_reason, turns.start, turns.length,"
        " turns.prompt_tokens, length(turns.prompt_ids) / 4 AS new_prompt_tokens,"
        f" length(turns.output_ids) / 4 AS completion_tokens, turns.matching, {_EXTRAS},"
        " CASE WHEN length(turns.tools) <= :longest THEN turns.tools END AS tools,"
        " length(turns.messages) AS messages_bytes"
        " FROM turns LEFT JOIN turns AS parents ON parents.session = turns.session AND parents.number = turns.parent"
        " LEFT JOIN trajectories"
        " ON trajectories.session = turns.session AND trajectories.number = turns.trajectory"
        " WHERE turns.session = :session AND turns.number = :number",
        {"session": session, "number": number, "longest": LONGEST_MESSAGE},
    )
    assert row is not None
    matching, extras, tools = Matching.decode(row.pop("matching")), row.pop("extras"), row.pop("tools")
    row |= {name: bool(row[name]) for name in ("discarded", "mixed_cache")}
    row["delivered"] = Delivery.of_row(row["delivered"]) is Delivery.ARRIVED
    return TurnShape(
        **row,
        branch_reason=matching.branch_reason,
        lineage=matching.lineage,
        extras=Extras.decode(extras),
        leases=_leases(connection, session, row["trajectory"]),
        tools=None if tools is None else json.loads(tools),
    )


def _leases(connection: sqlite3.Connection, session: int, trajectory: int | None) -> list[dict[str, Any]]:
    """The last ten that its trajectory was under, oldest first."""
    found = named_rows(
        connection,
        "SELECT lease AS lease_id, CASE WHEN acknowledged THEN 'acknowledged' ELSE state END AS state, leased_at,"
        " acknowledged_at FROM leased JOIN leases ON name = lease WHERE session = ? AND number = ?"
        " ORDER BY leases.id DESC LIMIT 10",
        (session, trajectory),
    )
    return list(found)[::-1]


_CUT: Final = (
    "CASE WHEN length(value) <= :longest THEN value ELSE json_object('role', value ->> '$.role',"
    " 'content', substr(coalesce(value ->> '$.content', value), 1, :beginning)) END,"
    " CASE WHEN length(value) > :longest THEN length(CAST(value AS BLOB)) END"
)
_LIMITS: Final = {"longest": LONGEST_MESSAGE, "beginning": BEGINNING}


def load_messages(connection: sqlite3.Connection, session: int, shape: TurnShape, first: int) -> Iterator[MessagePart]:
    """A turn's own messages from its `first` on, its output as the last."""
    values = {"session": session, "number": shape.number, "first": first, **_LIMITS}
    if shape.messages_bytes > LONGEST_MESSAGES:
        if not first:
            yield _beginning_of_all(connection, session, shape)
    else:
        for text, cut in connection.execute(
            f"SELECT {_CUT} FROM turns, json_each(CAST(messages AS TEXT)) WHERE session = :session"
            " AND number = :number AND key >= :first",
            values,
        ):
            yield MessagePart(text.encode(), cut)
    for text, cut in connection.execute(
        f"SELECT {_CUT} FROM (SELECT CAST(output AS TEXT) AS value FROM turns WHERE session = :session"
        " AND number = :number)",
        values,
    ):
        yield MessagePart(text.encode(), cut)


def _beginning_of_all(connection: sqlite3.Connection, session: int, shape: TurnShape) -> MessagePart:
    (begins,) = connection.execute(
        "SELECT substr(messages, 1, ?) FROM turns WHERE session = ? AND number = ?", (BEGINNING, session, shape.number)
    ).fetchone()
    message = {"role": "messages", "content": begins.decode("utf-8", "replace")}
    return MessagePart(msgspec.json.encode(message), shape.messages_bytes)


def load_tokens(connection: sqlite3.Connection, session: int, shape: TurnShape, *, start: int, most: int) -> TokenPart:
    """So many of a turn's tokens: new ones of its prompt, then its output."""
    of_prompt = max(0, min(most, shape.new_prompt_tokens - start))
    first, of_output = max(0, start - shape.new_prompt_tokens), most - of_prompt
    prompt, output, logprobs, versions = connection.execute(
        "SELECT substr(prompt_ids, ?, ?), substr(output_ids, ?, ?), substr(logprobs, ?, ?), versions"
        " FROM turns WHERE session = ? AND number = ?",
        (4 * start + 1, 4 * of_prompt, *(4 * first + 1, 4 * of_output) * 2, session, shape.number),
    ).fetchone()
    outputs = array("i", output)
    by_output = by_token(versions)[first : first + len(outputs)].tolist()
    series = annotations.load(connection, session, shape.number, first=first, most=of_output)
    said = {name: array("f", content) for name, content in series.items()}
    return TokenPart(array("i", prompt), outputs, array("f", logprobs), by_output, said)
