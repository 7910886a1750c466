"""What a turn's row keeps of how it was matched and is found, and how digests that older rules made are made anew.

Digests are compared in memory only, for the session that a call is of. So those of rules that are no longer in force
(`messages.Rules`: those of an earlier version of this program, or of another chat format) stay in their rows, and are
made anew from the stored messages whenever such a session is loaded.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.turns.branching import BranchReason
from rolloutfleet_proxy.turns.messages import (
    Calls,
    Message,
    Rules,
    TemplateArgs,
    append,
    beginning,
    call_ids,
    reasoning_digest,
)

OLDEST_RULES = "1"
"""Those of rows that don't say by which rules they were made."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


class Matching(msgspec.Struct, frozen=True):
    """What a turn's own messages, its answer included, add to the digests of its history."""

    rules: str
    """By which rules all digests of the row were made, as `messages.Rules.name` has it."""
    reasonings: tuple[tuple[int, bytes], ...] = ()
    """(message index, digest) of each that carries reasoning."""
    call_ids: tuple[str | None, ...] = ()
    """Of the tool calls that they make, in order."""
    branch_reason: BranchReason | None = None
    """Why it starts a branch; None where it extends its parent, or parts from no other turn."""

    def encode(self) -> bytes:
        """As JSON, which `decode` reads."""
        return _encode(
            {
                "rules": self.rules,
                "reasonings": [(index, digest.hex()) for index, digest in self.reasonings],
                "call_ids": self.call_ids,
                "branch_reason": self.branch_reason,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Matching:
        """Rows of the oldest rules hold the reasonings alone."""
        value = _decode(data)
        known: dict[str, Any] = {"reasonings": value} if isinstance(value, list) else value
        return cls(
            rules=known.get("rules", OLDEST_RULES),
            reasonings=tuple((index, bytes.fromhex(digest)) for index, digest in known["reasonings"]),
            call_ids=tuple(known.get("call_ids", ())),
            branch_reason=branch_reason(known.get("branch_reason")),
        )


def branch_reason(value: dict[str, Any] | None) -> BranchReason | None:
    """Of its JSON."""
    return None if value is None else BranchReason(value["message"], value["field"])


@dataclass(frozen=True, slots=True)
class Digests:
    """What a turn is found by."""

    request: bytes
    """The chain after its request's messages."""
    history: bytes
    """The chain after its answer."""
    matching: Matching


def in_force(
    connection: sqlite3.Connection, session: int, rules: Rules, stored: dict[int, Digests]
) -> dict[int, Digests]:
    """Of all turns of a session by these rules, by number; `stored` are those that their rows hold. Raises LookupError
    where a turn that another extends is missing."""
    if all(digests.matching.rules == rules.name for digests in stored.values()):
        return stored
    return _made_anew(connection, session, rules)


def load_comparable(connection: sqlite3.Connection | Transaction, session: int) -> dict[int, Digests]:
    """Of all turns of a session, by number, all by the same rules, whichever these are. Raises LookupError likewise."""
    stored = _stored(connection, session)
    if len({digests.matching.rules for digests in stored.values()}) <= 1:
        return stored
    return _made_anew(connection, session, Rules.named(stored[max(stored)].matching.rules))


def _stored(connection: sqlite3.Connection | Transaction, session: int) -> dict[int, Digests]:
    return {
        number: Digests(request, history, Matching.decode(matching))
        for number, request, history, matching in connection.execute(
            "SELECT number, request, history, matching FROM turns WHERE session = ? ORDER BY number", (session,)
        )
    }


def _made_anew(connection: sqlite3.Connection | Transaction, session: int, rules: Rules) -> dict[int, Digests]:
    made: dict[int, Digests] = {}
    parents: dict[int, int | None] = {}
    calls, calls_of = Calls(), None
    for number, parent, start, messages, output, tools in connection.execute(
        "SELECT number, parent, start, messages, output, tools FROM turns WHERE session = ? ORDER BY number", (session,)
    ):
        if parent is not None and parent not in made:
            raise LookupError(f"turn {parent} is gone")
        if parent is None or parent != calls_of:
            calls = _calls_up_to(parent, parents, made)
        chain = beginning(_template(tools)) if parent is None else made[parent].history
        made[number] = _digests(chain, start, _decode(messages), _decode(output), calls, rules)
        parents[number], calls_of = parent, number
    return made


def _digests(chain: bytes, start: int, messages: list[Message], output: Message, calls: Calls, rules: Rules) -> Digests:
    for message in messages:
        chain = append(chain, message, rules, calls)
    own = [*messages, output]
    reasonings = [(start + index, digest) for index, each in enumerate(own) if (digest := reasoning_digest(each))]
    return Digests(
        request=chain,
        history=append(chain, output, rules, calls),
        matching=Matching(rules.name, tuple(reasonings), tuple(call_ids(own))),
    )


def _calls_up_to(turn: int | None, parents: Mapping[int, int | None], made: Mapping[int, Digests]) -> Calls:
    path = []
    while turn is not None:
        path.append(made[turn].matching.call_ids)
        turn = parents[turn]
    return Calls([call_id for ids in reversed(path) for call_id in ids])


def _template(tools: bytes | None) -> TemplateArgs:
    given = {} if tools is None else _decode(tools)
    return TemplateArgs(given.get("tools"), given.get("template_kwargs"))
