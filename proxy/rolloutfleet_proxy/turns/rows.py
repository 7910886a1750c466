"""Turns as rows: the one statement that makes a generation durable, and the reads that bring it back.

Token ids are int32 and log-probabilities float32, little-endian, so a row is the bytes of the array. A turn
stores only what its parent does not: the prompt's ids behind the parent's prompt and output, and the messages
that the request added. A session therefore grows with its tokens, not with turns times length.
"""

import sqlite3
from array import array
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import msgspec

from rolloutfleet_proxy.store.transaction import CREATED, LIVE, TURNS, Transaction
from rolloutfleet_proxy.turns.branching import BranchReason
from rolloutfleet_proxy.turns.matching import Digests, Matching, in_force
from rolloutfleet_proxy.turns.messages import Rules
from rolloutfleet_proxy.turns.tree import Node

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


CONSTRAINED = "constrained"
"""In a turn's `extras`: the kind of grammar that it was sampled under, one of `engines.generation.GRAMMARS`."""
BIASED_BY = "biased_by"
"""In a turn's `extras`: what else changed the distribution that it was sampled from, of `engines.generation.BIASES`."""


class SessionOver(Exception):
    """The session ended while the turn was made: nothing of it is recorded."""


class NewTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A generation that passed its checks and waits to be committed."""

    session: int
    name: str
    parent: int | None
    delivered: bool
    history: bytes
    request: bytes
    body: bytes
    idempotency_key: str | None
    start: int
    length: int
    matching: Matching
    messages: list[dict[str, Any]]
    tools: dict[str, Any] | None
    output: dict[str, Any]
    prompt_ids: "array[int]"
    """What follows the parent's prompt and output."""
    prompt_tokens: int
    output_ids: "array[int]"
    logprobs: "array[float]"
    versions: list[tuple[int, int]]
    """(weight version, how many tokens), in order."""
    finish_reason: str
    mixed_cache: bool
    run: int
    extras: dict[str, Any] | None
    created_at: float
    """Seconds since the epoch at which its call began."""

    @property
    def new_tokens(self) -> int:
        return len(self.prompt_ids) + len(self.output_ids)


@dataclass(slots=True)
class Brief:
    """What memory holds of a committed turn, beside its node in the tree."""

    name: str
    body: bytes
    idempotency_key: str | None
    delivered: bool
    tokens: int
    """Of its whole prompt and its output: where a child's own prompt ids begin."""

    @classmethod
    def of(cls, new: NewTurn) -> Self:
        return cls(
            name=new.name,
            body=new.body,
            idempotency_key=new.idempotency_key,
            delivered=new.delivered,
            tokens=new.prompt_tokens + len(new.output_ids),
        )


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """A committed turn, whole but for its parent's part of the prompt."""

    session: int
    number: int
    name: str
    parent: int | None
    trajectory: int | None
    messages: list[dict[str, Any]]
    output: dict[str, Any]
    prompt_ids: "array[int]"
    prompt_tokens: int
    output_ids: "array[int]"
    logprobs: "array[float]"
    versions: list[tuple[int, int]]
    finish_reason: str
    mixed_cache: bool
    branch_reason: BranchReason | None
    extras: dict[str, Any]
    reward: float | None
    created_at: float

    @property
    def constrained(self) -> str | None:
        """The kind of grammar that it was sampled under."""
        found: str | None = self.extras.get(CONSTRAINED)
        return found

    @property
    def biased_by(self) -> list[str] | None:
        """The sampling parameters that may have changed the distribution that its log-probabilities are of."""
        found: list[str] | None = self.extras.get(BIASED_BY)
        return found

    def versions_by_token(self) -> list[int]:
        return [version for version, tokens in self.versions for _ in range(tokens)]


_INSERT = """
INSERT INTO turns (session, number, name, parent, state, delivered, history, request, body, idempotency_key,
    start, length, matching, messages, tools, output, prompt_ids, prompt_tokens, output_ids, logprobs, versions,
    finish_reason, mixed_cache, run, extras, created_at)
VALUES (?, ?, ?, ?, 'live', ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""


def commit_turn(transaction: Transaction, turn: NewTurn) -> int:
    """Add a turn to its session; returns its number.

    Raises SessionOver where the session has been closed or deleted since.
    """
    row = transaction.row("SELECT turns FROM sessions WHERE id = ? AND state = 'open'", (turn.session,))
    if row is None:
        raise SessionOver
    number: int = row[0] + 1
    transaction.execute(
        _INSERT,
        (
            turn.session,
            number,
            turn.name,
            turn.parent,
            turn.delivered,
            turn.history,
            turn.request,
            turn.body,
            turn.idempotency_key,
            turn.start,
            turn.length,
            turn.matching.encode(),
            _encode(turn.messages),
            None if turn.tools is None else _encode(turn.tools),
            _encode(turn.output),
            turn.prompt_ids.tobytes(),
            turn.prompt_tokens,
            turn.output_ids.tobytes(),
            turn.logprobs.tobytes(),
            _encode(turn.versions),
            turn.finish_reason,
            turn.mixed_cache,
            turn.run,
            None if turn.extras is None else _encode(turn.extras),
            turn.created_at,
        ),
    )
    transaction.execute(
        "UPDATE sessions SET turns = ?, tokens = tokens + ?, touched = ? WHERE id = ?",
        (number, turn.new_tokens, transaction.served, turn.session),
    )
    transaction.count(TURNS, CREATED)
    transaction.count(TURNS, LIVE)
    return number


def committed(new: NewTurn, number: int) -> Turn:
    """The turn that `commit_turn` made of a new one."""
    return Turn(
        session=new.session,
        number=number,
        name=new.name,
        parent=new.parent,
        trajectory=None,
        messages=new.messages,
        output=new.output,
        prompt_ids=new.prompt_ids,
        prompt_tokens=new.prompt_tokens,
        output_ids=new.output_ids,
        logprobs=new.logprobs,
        versions=new.versions,
        finish_reason=new.finish_reason,
        mixed_cache=new.mixed_cache,
        branch_reason=new.matching.branch_reason,
        extras=new.extras or {},
        reward=None,
        created_at=new.created_at,
    )


def set_delivered(transaction: Transaction, session: int, number: int, delivered: bool) -> None:
    """Note that a caller got this turn's answer, or that it turned out that none did."""
    transaction.execute("UPDATE turns SET delivered = ? WHERE session = ? AND number = ?", (delivered, session, number))


def load_nodes(connection: sqlite3.Connection, session: int, rules: Rules) -> list[tuple[Node, Brief]]:
    """The session's tree as memory holds it, in order of commit; digests that other rules made are made anew."""
    stored: dict[int, Digests] = {}
    rows: list[tuple[tuple[Any, ...], Brief]] = []
    for row in connection.execute(
        "SELECT number, parent, start, length, name, body, idempotency_key, delivered,"
        " prompt_tokens + length(output_ids) / 4, request, history, matching"
        " FROM turns WHERE session = ? ORDER BY number",
        (session,),
    ):
        request, history, matching = row[9:]
        stored[row[0]] = Digests(request, history, Matching.decode(matching))
        rows.append((row[:4], _brief(row[4:9])))
    digested = in_force(connection, session, rules, stored)
    return [(_node(row, digested[row[0]]), brief) for row, brief in rows]


def _node(row: tuple[Any, ...], digests: Digests) -> Node:
    number, parent, start, length = row
    return Node(
        turn=number,
        parent=parent,
        start=start,
        length=length,
        history=digests.history,
        reasonings=digests.matching.reasonings,
        call_ids=digests.matching.call_ids,
    )


def _brief(row: tuple[Any, ...]) -> Brief:
    name, body, idempotency_key, delivered, tokens = row
    return Brief(
        name=name,
        body=body,
        idempotency_key=idempotency_key,
        delivered=bool(delivered),
        tokens=tokens,
    )


_SELECT = """
SELECT session, number, name, parent, trajectory, messages, output, prompt_ids, prompt_tokens, output_ids, logprobs,
    versions, finish_reason, mixed_cache, extras, reward, created_at, matching FROM turns
"""


def load_turn(connection: sqlite3.Connection, session: int, number: int) -> Turn | None:
    row = connection.execute(f"{_SELECT} WHERE session = ? AND number = ?", (session, number)).fetchone()
    return None if row is None else _turn(row)


def load_turns(connection: sqlite3.Connection, session: int, *, after: int = 0, limit: int = -1) -> list[Turn]:
    """Turns with a number above `after`, oldest first; all of them unless limited."""
    rows = connection.execute(
        f"{_SELECT} WHERE session = ? AND number > ? ORDER BY number LIMIT ?", (session, after, limit)
    )
    return [_turn(row) for row in rows]


def load_ids(connection: sqlite3.Connection, session: int, number: int) -> "tuple[array[int], array[int]]":
    """(whole prompt, output) of a turn: the ids of its path from the root, put together.

    Raises LookupError where a turn of the path is gone.
    """
    path: list[tuple[bytes, bytes]] = []
    at: int | None = number
    while at is not None:
        row = connection.execute(
            "SELECT prompt_ids, output_ids, parent FROM turns WHERE session = ? AND number = ?", (session, at)
        ).fetchone()
        if row is None:
            raise LookupError(f"turn {at} is gone")
        path.append(row[:2])
        at = row[2]
    prompt = b"".join(part for turn in reversed(path[1:]) for part in turn) + path[0][0]
    return array("i", prompt), array("i", path[0][1])


def spans(versions: list[int]) -> list[tuple[int, int]]:
    """[5, 5, 6] as [(5, 2), (6, 1)]."""
    return [(version, len(list(same))) for version, same in groupby(versions)]


def _turn(row: tuple[Any, ...]) -> Turn:
    return Turn(
        session=row[0],
        number=row[1],
        name=row[2],
        parent=row[3],
        trajectory=row[4],
        messages=_decode(row[5]),
        output=_decode(row[6]),
        prompt_ids=array("i", row[7]),
        prompt_tokens=row[8],
        output_ids=array("i", row[9]),
        logprobs=array("f", row[10]),
        versions=[(version, tokens) for version, tokens in _decode(row[11])],
        finish_reason=row[12],
        mixed_cache=bool(row[13]),
        extras={} if row[14] is None else _decode(row[14]),
        reward=row[15],
        created_at=row[16],
        branch_reason=Matching.decode(row[17]).branch_reason,
    )
