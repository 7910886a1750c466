"""What is kept of a turn to find it by its messages, and how digests that older rules made are made anew. Pure.

Digests are compared in memory only, for the session that a call is of. So those of rules that are no longer in force
(`messages.Rules`: those of an earlier version of this program, or of another chat format) stay in their rows, and are
made anew from the stored messages whenever such a session is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from rolloutfleet_proxy.domain.branching import BranchReason
from rolloutfleet_proxy.domain.lineage import MAIN, Lineage, parse_lineage
from rolloutfleet_proxy.domain.messages import (
    Calls,
    Message,
    Rules,
    TemplateArgs,
    append,
    beginning,
    call_ids,
    in_order,
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
    """Why it is a fork; None where it extends its parent, begins a conversation, or parts from no other turn."""
    lineage: Lineage = MAIN

    def encode(self) -> bytes:
        """As JSON, which `decode` reads."""
        value = {
            "rules": self.rules,
            "reasonings": [(index, digest.hex()) for index, digest in self.reasonings],
            "call_ids": self.call_ids,
            "branch_reason": self.branch_reason,
        }
        return _encode(value if self.lineage == MAIN else value | {"lineage": self.lineage})

    @classmethod
    def decode(cls, data: bytes) -> Matching:
        """Rows of the oldest rules hold the reasonings alone, and those of the main loop no lineage."""
        value = _decode(data)
        known: dict[str, Any] = {"reasonings": value} if isinstance(value, list) else value
        return cls(
            rules=known.get("rules", OLDEST_RULES),
            reasonings=tuple((index, bytes.fromhex(digest)) for index, digest in known["reasonings"]),
            call_ids=tuple(known.get("call_ids", ())),
            branch_reason=parse_branch_reason(known.get("branch_reason")),
            lineage=parse_lineage(known.get("lineage")),
        )


def parse_branch_reason(value: dict[str, Any] | None) -> BranchReason | None:
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


class OwnMessages(NamedTuple):
    """What a turn adds to the conversation."""

    number: int
    parent: int | None
    start: int
    """How many messages its parent covers."""
    messages: list[Message]
    """Its request's from there on."""
    output: Message
    args: TemplateArgs
    """Those that its history begins with, where it has no parent."""
    lineage: Lineage


def made_anew(turns: Iterable[OwnMessages], rules: Rules) -> dict[int, Digests]:
    """Of all turns of a session, given in order of commit, by these rules and by number. Raises LookupError where a
    turn that another extends is missing."""
    made: dict[int, Digests] = {}
    parents: dict[int, int | None] = {}
    calls, calls_of = Calls(), None
    for turn in turns:
        if turn.parent is not None and turn.parent not in made:
            raise LookupError(f"turn {turn.parent} is gone")
        if turn.parent is None or turn.parent != calls_of:
            calls = _calls_up_to(turn.parent, parents, made)
        chain = beginning(turn.args) if turn.parent is None else made[turn.parent].history
        made[turn.number] = _digests(chain, turn, calls, rules)
        parents[turn.number], calls_of = turn.parent, turn.number
    return made


def _digests(chain: bytes, turn: OwnMessages, calls: Calls, rules: Rules) -> Digests:
    for message in in_order(turn.messages, calls):
        chain = append(chain, message, rules, calls)
    own = [*turn.messages, turn.output]
    reasonings = [(turn.start + index, digest) for index, each in enumerate(own) if (digest := reasoning_digest(each))]
    return Digests(
        request=chain,
        history=append(chain, turn.output, rules, calls),
        matching=Matching(rules.name, tuple(reasonings), tuple(call_ids(own)), lineage=turn.lineage),
    )


def _calls_up_to(turn: int | None, parents: Mapping[int, int | None], made: Mapping[int, Digests]) -> Calls:
    path = []
    while turn is not None:
        path.append(made[turn].matching.call_ids)
        turn = parents[turn]
    return Calls([call_id for ids in reversed(path) for call_id in ids])
