"""A session as it is looked at, wherever it comes from."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutfleet.wire import Conversation, ShownTokens, ShownTurn

TOKEN_LISTS: Final = ("input_ids", "texts", "logprobs", "versions", "loss_mask")
"""Of `ShownTokens`: those that have one entry for each token."""


@dataclass(frozen=True, slots=True, eq=False)
class RecordedBranch:
    """One branch that is recorded: the path of a turn, or a row of an export."""

    last: str
    """Its last turn."""
    turn_ids: Sequence[str]
    read: Callable[[], list[ShownTurn]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a file has of one session, or of one trajectory of it."""

    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    turns: Sequence[ShownTurn]
    """For the tree: without messages and tokens."""
    branches: Sequence[RecordedBranch]
    versions: Sequence[int] = ()
    """Of the sampled tokens, each once."""

    def branch(self, turn_id: str | None) -> RecordedBranch | None:
        """That which ends with a turn, else the first with it; the last one where none is named."""
        if turn_id is None:
            return self.branches[-1] if self.branches else None
        holding = [each for each in self.branches if turn_id in each.turn_ids]
        return next((each for each in holding if each.last == turn_id), holding[0] if holding else None)


def ending_facts(outcome: str | None, reason: str | None) -> dict[str, Any]:
    """The outcome of a session, as a fact; nothing where that is not known."""
    return {} if outcome is None else {"outcome": f"{outcome}: {reason}" if reason else outcome}


def said_in(answer: Mapping[str, Any]) -> str:
    """The text of a message, whatever else stands in it; where it has none, the tools that it calls."""
    content, calls = answer.get("content"), answer.get("tool_calls")
    if content and isinstance(content, str):
        return content
    functions = [each.get("function") for each in calls if isinstance(each, dict)] if isinstance(calls, list) else []
    return ", ".join(f"→ {function.get('name')}" for function in functions if isinstance(function, dict))


def merged(pages: Iterable[Conversation]) -> list[ShownTurn]:
    """The turns of a branch, each with all of its messages and tokens."""
    found: list[ShownTurn] = []
    for page in pages:
        for turn in page.turns:
            if found and found[-1].turn_id == turn.turn_id:
                before = found.pop()
                together = {
                    "messages": [*before.messages, *turn.messages],
                    "tokens": _joined(before.tokens, turn.tokens),
                    "tools": before.tools,
                    "template_kwargs": before.template_kwargs,
                }
                turn = turn.model_copy(update=together)
            found.append(turn)
    return found


def _joined(one: ShownTokens, other: ShownTokens) -> ShownTokens:
    joined = {name: [*getattr(one, name), *getattr(other, name)] for name in TOKEN_LISTS}
    series = {
        name: [each for part in (one, other) for each in part.annotations.get(name, [None] * len(part.input_ids))]
        for name in sorted({*one.annotations, *other.annotations})
    }
    return one.model_copy(update={**joined, "annotations": series})
