"""Why a turn is a fork: where its messages part from those of the earlier turn that they follow longest. Pure.

Memory holds digests of whole histories alone, so the messages are read from the store, for forks alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from rolloutfleet_proxy.domain.messages import (
    Calls,
    Message,
    Rules,
    TemplateArgs,
    call_ids,
    canonical,
    in_order,
    reasoning_digest,
)
from rolloutfleet_proxy.domain.tree import Node

ROLE: Final = "role"
CONTENT: Final = "content"
REASONING: Final = "reasoning"
TOOL_CALLS: Final = "tool_calls"
TOOL_CALL_ID: Final = "tool_call_id"
"""A tool message answers another call."""
TOOLS: Final = "tools"
TEMPLATE: Final = "template"
"""Other template arguments."""
TOKENS: Final = "tokens"
"""The messages are the same, but the chat format doesn't write that turn's tokens again."""
_IN_ORDER = (ROLE, CONTENT, TOOL_CALLS, TOOL_CALL_ID)

_FIRST, _LAST = 2, 6
"""How many turns a request is compared with: the oldest, a main agent's most likely, and the newest."""


class BranchReason(msgspec.Struct, frozen=True):
    """Where a request parts from the history that it follows longest."""

    message: int | None
    """Index from 0; None for what is no message's."""
    field: str
    """One of those above, or another field that the chat format writes."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request that goes on from `start`, behind what its parent covers; from 0 where it has none."""

    messages: Sequence[Message]
    args: TemplateArgs
    rules: Rules
    start: int
    call_ids: Sequence[str | None]
    """Of the tool calls before `start`."""


def follows_another(messages: Sequence[Mapping[str, Any]], start: int) -> bool:
    """Whether a request holds answers beyond those of the turn that it extends."""
    return any(message.get("role") == "assistant" for message in messages[start:])


def compared(others: Sequence[Node]) -> list[Node]:
    """Which of the turns that go on from the same parent, oldest first, a request is compared with.

    Newest first, as what comes is most often what was last said, changed.
    """
    return [*reversed(others[_FIRST:][-_LAST:]), *others[:_FIRST]]


def branch_reason(
    asked: Asked, turns: Iterable[tuple[Node, Sequence[Message], TemplateArgs | None]]
) -> BranchReason | None:
    """Where a request parts from turns that go on from the same parent: the one that it follows longest.

    Each comes with its own messages, its answer included; a root with its `args`. No more are taken than it needs. None
    where the request parts from none of them: it asks again what was asked before.
    """
    best: tuple[tuple[bool, int], BranchReason] | None = None
    for node, messages, args in turns:
        found = parting(asked, messages, args)
        if found is None:
            continue
        # One that differs in its tools, too, was no more to be continued had the messages been the same.
        likely = found.message is None or _template_differing(asked, args) is None
        agreed = asked.start + len(messages) if found.message is None else found.message
        if best is None or (likely, agreed) > best[0]:
            best = (likely, agreed), found
        if likely and agreed >= node.length - 1:
            break
    return None if best is None else best[1]


def parting(asked: Asked, messages: Sequence[Message], args: TemplateArgs | None) -> BranchReason | None:
    """The first difference to a turn's own messages, its answer included; or, where it is a root, to its `args`."""
    ours, theirs = Calls(asked.call_ids), Calls(asked.call_ids)
    both = zip(in_order(messages, ours), in_order(asked.messages[asked.start :], theirs), strict=False)
    for index, (known, given) in enumerate(both, asked.start):
        field = _differing(known, given, ours.place(known), theirs.place(given), asked.rules)
        if field is not None:
            return BranchReason(index, field)
        ours.add(call_ids([known]))
        theirs.add(call_ids([given]))
    field = _template_differing(asked, args)
    return None if field is None else BranchReason(None, field)


def _template_differing(asked: Asked, args: TemplateArgs | None) -> str | None:
    if args is None:
        return None
    if (args.tools or []) != (asked.args.tools or []):
        return TOOLS
    return TEMPLATE if (args.kwargs or {}) != (asked.args.kwargs or {}) else None


def _differing(
    known: Message, given: Message, known_place: int | None, given_place: int | None, rules: Rules
) -> str | None:
    one, other = canonical(known, rules, known_place), canonical(given, rules, given_place)
    fields = [*_IN_ORDER, *sorted((one.keys() | other.keys()) - set(_IN_ORDER))]
    for field in fields:
        if one.get(field) != other.get(field):
            return field
    reasoned = reasoning_digest(given)
    return None if reasoned is None or reasoned == reasoning_digest(known) else REASONING
