"""Turns as rows: the one statement that makes a generation durable, and the reads that bring it back.

Token ids are int32 and log-probabilities float32, little-endian, so a row is the bytes of the array. A turn
stores only what its parent does not: the prompt's ids behind the parent's prompt and output, and the messages
that the request added. A session therefore grows with its tokens, not with turns times length.
"""

import sqlite3
from array import array
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from rolloutfleet_proxy.domain.branching import Asked, BranchReason, branch_reason, compared
from rolloutfleet_proxy.domain.errors import TurnDamaged
from rolloutfleet_proxy.domain.ledger import CREATED, LIVE, TURNS
from rolloutfleet_proxy.domain.matching import Digests, Matching, OwnMessages, made_anew
from rolloutfleet_proxy.domain.messages import Message, Rules, TemplateArgs
from rolloutfleet_proxy.domain.tree import Node
from rolloutfleet_proxy.domain.turn import Answer, Brief, Delivery, Extras, Generated, NewTurn, Turn
from rolloutfleet_proxy.store.checksums import SOUND, SOUND_TOKENS
from rolloutfleet_proxy.store.summaries import Known, add_turn
from rolloutfleet_proxy.store.transaction import Row, Source, Transaction, insert_statement, named_row, named_rows

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode

_MOST_COMPARED: Final = 4 << 20
"""Bytes of JSON that are read to learn why a turn branches, beyond one turn's."""
_OWN_MESSAGES: Final = "SELECT number, parent, start, messages, output, tools, matching FROM turns WHERE session = ?"


def extras_without(*fields: str) -> str:
    """How a turn's extras are selected for `Extras.decode` without some of its fields."""
    paths = ", ".join(f"'$.{field}'" for field in fields)
    return f"json_remove(CAST(turns.extras AS TEXT), {paths}) AS extras"


class SessionOver(Exception):
    """The session ended while the turn was made: nothing of it is recorded."""


_AS_IS: Final = (
    *("session", "name", "parent", "delivered", "history", "request", "body", "idempotency_key", "start", "length"),
    *("prompt_tokens", "finish_reason", "mixed_cache", "run", "created_at"),
)
_AS_JSON: Final = ("messages", "tools", "output", "versions")
_AS_BYTES: Final = ("prompt_ids", "output_ids", "logprobs")
"""Columns that hold what the new turn's field of that name does, and in which form."""
_INSERT: Final = insert_statement("turns", (*_AS_IS, *_AS_JSON, *_AS_BYTES, "extras", "matching", "number", "state"))
_OPEN: Final = "SELECT turns, branches, version_min, version_max FROM sessions WHERE id = ? AND state = 'open'"
_take_as_is, _take_as_json, _take_as_bytes = attrgetter(*_AS_IS), attrgetter(*_AS_JSON), attrgetter(*_AS_BYTES)
_take_generated = attrgetter(*Generated.__struct_fields__)  # first among the fields of Turn, too


def commit_turn(transaction: Transaction, turn: NewTurn) -> Turn:
    """Add a turn to its session.

    Raises SessionOver where the session has been closed or deleted since.
    """
    row = transaction.row(_OPEN, (turn.session,))
    if row is None:
        raise SessionOver
    number: int = row[0] + 1
    encoded = [None if value is None else _encode(value) for value in _take_as_json(turn)]
    arrays = [ids.tobytes() for ids in _take_as_bytes(turn)]
    added = (turn.extras.encode(), turn.matching.encode(), number, LIVE)
    transaction.execute(_INSERT, (*_take_as_is(turn), *encoded, *arrays, *added))
    add_turn(transaction, turn, number, Known(*row[1:]))
    transaction.count(TURNS, CREATED)
    transaction.count(TURNS, LIVE)
    trajectory = reward = None
    matching = turn.matching
    values = (*_take_generated(turn), number, trajectory, matching.branch_reason, matching.lineage, reward)
    return Turn(*values)


def load_nodes(connection: sqlite3.Connection, session: int, rules: Rules) -> list[tuple[Node, Brief]]:
    """The session's tree as memory holds it, in order of commit; digests that other rules made are made anew.

    Raises LookupError where a turn that another extends is missing.
    """
    rows = connection.execute(
        "SELECT number, parent, start, length, name, body, idempotency_key, delivered, trajectory IS NOT NULL,"
        " prompt_tokens + length(output_ids) / 4, request, history, matching"
        " FROM turns WHERE session = ? ORDER BY number",
        (session,),
    ).fetchall()
    digests = {row[0]: _digests(*row[10:]) for row in rows}
    if any(each.matching.rules != rules.name for each in digests.values()):
        digests = made_anew(_load_own_messages(connection, session), rules)
    return [
        (
            _node(number, parent, start, length, digests[number]),
            Brief(name, body, key, _delivery(delivered, closed=closed), tokens),
        )
        for number, parent, start, length, name, body, key, delivered, closed, tokens, *_ in rows
    ]


def _delivery(noted: int, *, closed: bool) -> Delivery:
    """What a row says to who gives none of the session's turns just now. A closed one is nobody's answer any more."""
    return Delivery.ARRIVED if closed or Delivery.of_row(noted) is Delivery.ARRIVED else Delivery.LOST


def newest_closed(source: Source, session: int) -> int:
    """Number of the newest turn of a session that is of a trajectory; 0 where none is."""
    row = source.execute(
        "SELECT number FROM turns WHERE session = ? AND trajectory IS NOT NULL ORDER BY number DESC LIMIT 1", (session,)
    ).fetchone()
    return 0 if row is None else int(row[0])


def _node(number: int, parent: int | None, start: int, length: int, digests: Digests) -> Node:
    matching = digests.matching
    return Node(
        number, parent, start, length, digests.history, matching.reasonings, matching.call_ids, matching.lineage
    )


def load_comparable(source: Source, session: int) -> dict[int, Digests]:
    """What all turns of a session are found by, by number, all by the same rules, whichever these are.

    Raises LookupError as `load_nodes` does.
    """
    stored = {
        number: _digests(*row)
        for number, *row in source.execute(
            "SELECT number, request, history, matching FROM turns WHERE session = ? ORDER BY number", (session,)
        )
    }
    if len({digests.matching.rules for digests in stored.values()}) <= 1:
        return stored
    return made_anew(_load_own_messages(source, session), Rules.named(stored[max(stored)].matching.rules))


def load_branch_reason(
    connection: sqlite3.Connection, session: int, others: Sequence[Node], asked: Asked
) -> BranchReason | None:
    """Where a request parts from the turns that go on from the same parent, oldest first; None where from none."""
    return branch_reason(asked, _load_compared(connection, session, compared(others)))


def _load_compared(
    connection: sqlite3.Connection, session: int, nodes: Iterable[Node]
) -> Iterator[tuple[Node, list[Message], TemplateArgs | None]]:
    taken = 0
    for node in nodes:
        row = connection.execute(f"{_OWN_MESSAGES} AND number = ?", (session, node.turn)).fetchone()
        if row is not None:
            own = _own_messages(row)
            yield node, [*own.messages, own.output], own.args if node.parent is None else None
            taken += len(row[3])
            if taken > _MOST_COMPARED:
                return


def _load_own_messages(source: Source, session: int) -> Iterator[OwnMessages]:
    return map(_own_messages, source.execute(f"{_OWN_MESSAGES} ORDER BY number", (session,)))


def _own_messages(row: tuple[Any, ...]) -> OwnMessages:
    number, parent, start, messages, output, tools, matching = row
    given = {} if tools is None else _decode(tools)
    args = TemplateArgs(given.get("tools"), given.get("template_kwargs"))
    lineage = Matching.decode(matching).lineage
    return OwnMessages(number, parent, start, _decode(messages), _decode(output), args, lineage)


def _digests(request: bytes, history: bytes, matching: bytes) -> Digests:
    return Digests(request, history, Matching.decode(matching))


_ANSWER: Final = (
    f"SELECT {SOUND}, output, finish_reason, {extras_without('top_logprobs')} FROM turns"
    " WHERE session = ? AND number = ? AND state = ?"
)
_SELECT: Final = (
    f"SELECT {SOUND} AS sound, session, number, name, parent, trajectory, prompt_tokens, finish_reason, reward,"
    " created_at, messages, output, prompt_ids, output_ids, logprobs, versions, mixed_cache, extras, matching"
    " FROM turns"
)


def load_turn(connection: sqlite3.Connection, session: int, number: int) -> Turn | None:
    """None where it is gone. Raises TurnDamaged."""
    row = named_row(connection, f"{_SELECT} WHERE session = ? AND number = ?", (session, number))
    return None if row is None else _turn(**row)


def load_turns(connection: sqlite3.Connection, session: int, *, after: int = 0, limit: int = -1) -> list[Turn]:
    """Turns with a number above `after`, oldest first; all of them unless limited. Raises TurnDamaged."""
    rows = named_rows(
        connection, f"{_SELECT} WHERE session = ? AND number > ? ORDER BY number LIMIT ?", (session, after, limit)
    )
    return [_turn(**row) for row in rows]


class Followed(NamedTuple):
    """A turn that a call goes on from by its name."""

    messages: list[Message]
    """The whole conversation, its answer included."""
    own: int
    """How many of the first ones were its call's alone."""
    nbytes: int
    """Of their JSON."""
    placeholders: int
    """How many images of the conversation a text stands for."""


def load_followed(connection: sqlite3.Connection, session: int, number: int) -> Followed | None:
    """None where the turn is gone, discarded or hidden. Raises LookupError where a turn that it extends is gone, and
    TurnDamaged."""
    row = connection.execute(
        "SELECT extras FROM turns WHERE session = ? AND number = ? AND state = ?", (session, number, LIVE)
    ).fetchone()
    extras = None if row is None else Extras.decode(row[0])
    if extras is None or extras.hidden:
        return None
    path = list(_load_path(connection, session, number, "messages, output", SOUND))
    messages = [message for own, output in reversed(path) for message in [*_decode(own), _decode(output)]]
    nbytes = sum(len(own) + len(output) for own, output in path)
    return Followed(messages, extras.own_messages, nbytes, extras.placeholders)


def load_answers(
    connection: sqlite3.Connection, session: int, numbers: Iterable[int], *, most: int
) -> tuple[dict[int, Answer], int]:
    """What these turns said, by number, but for those that are gone, discarded or hidden; and the bytes of its JSON.
    What follows where these are more than `most` is not read.

    Raises TurnDamaged.
    """
    found, nbytes = {}, 0
    for number in numbers:
        row = connection.execute(_ANSWER, (session, number, LIVE)).fetchone()
        if row is None:
            continue
        sound, output, finish_reason, encoded = row
        if not sound:
            raise TurnDamaged(number)
        extras = Extras.decode(encoded)
        if not extras.hidden:
            found[number] = Answer(_decode(output), finish_reason, extras)
            nbytes += len(output)
        if nbytes > most:
            break
    return found, nbytes


def load_beginning(connection: sqlite3.Connection, session: int, number: int) -> OwnMessages:
    """The turn that the conversation of a turn begins with. Raises LookupError where one on the way is gone."""
    *_, (first,) = _load_path(connection, session, number, "number", "1")
    return _own_messages(connection.execute(f"{_OWN_MESSAGES} AND number = ?", (session, first)).fetchone())


def _load_path(connection: sqlite3.Connection, session: int, number: int, columns: str, sound: str) -> Iterator[Row]:
    """These columns of a turn and all that it extends, from the last to the first. `sound` is SQL of whether they are.

    Raises LookupError, TurnDamaged.
    """
    asked = f"SELECT {sound}, parent, {columns} FROM turns WHERE session = ? AND number = ?"
    at: int | None = number
    while at is not None:
        row = connection.execute(asked, (session, at)).fetchone()
        if row is None:
            raise LookupError(f"turn {at} is gone")
        if not row[0]:
            raise TurnDamaged(at)
        yield row[2:]
        at = row[1]


def hide(transaction: Transaction, session: int, number: int) -> bool:
    """Note that a turn is not shown any more; False where it was not to be seen before."""
    row = transaction.row("SELECT extras FROM turns WHERE session = ? AND number = ?", (session, number))
    extras = None if row is None else Extras.decode(row[0])
    if extras is None or extras.hidden:
        return False
    hidden = msgspec.structs.replace(extras, hidden=True).encode()
    transaction.execute("UPDATE turns SET extras = ? WHERE session = ? AND number = ?", (hidden, session, number))
    return True


def load_ids(connection: sqlite3.Connection, session: int, number: int) -> "tuple[array[int], array[int]]":
    """(whole prompt, output) of a turn: the ids of its path from the root, put together.

    Raises LookupError where a turn of the path is gone, and TurnDamaged.
    """
    (new, output), *before = _load_path(connection, session, number, "prompt_ids, output_ids", SOUND_TOKENS)
    prompt = b"".join(part for turn in reversed(before) for part in turn) + new
    return array("i", prompt), array("i", output)


def by_token(versions: bytes) -> Any:
    """The weight version of each token, as int32, of what a row has of them."""
    return np.repeat(*np.array(_decode(versions), np.int32).reshape(-1, 2).T)


def _turn(*, sound: int, matching: bytes, **row: Any) -> Turn:
    if not sound:
        raise TurnDamaged(row["number"])
    decoded = {
        "messages": _decode(row["messages"]),
        "output": _decode(row["output"]),
        "prompt_ids": array("i", row["prompt_ids"]),
        "output_ids": array("i", row["output_ids"]),
        "logprobs": array("f", row["logprobs"]),
        "versions": [(version, tokens) for version, tokens in _decode(row["versions"])],
        "mixed_cache": bool(row["mixed_cache"]),
        "extras": Extras.decode(row["extras"]),
    }
    found = Matching.decode(matching)
    return Turn(**row | decoded, branch_reason=found.branch_reason, lineage=found.lineage)
