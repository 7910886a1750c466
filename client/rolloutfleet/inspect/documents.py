"""The documents that pages are made of: plain data, made of what a fleet or a file says. Pure.

The same for live pages and for a bundle. docs/inspect.md lists them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from rolloutfleet.inspect.names import safe_name
from rolloutfleet.inspect.sources import Json
from rolloutfleet.viewing import TOKEN_LISTS, limbs, said_in
from rolloutfleet.wire import SessionStatus, ShownTokens, ShownTurn

TOKENS_A_CHUNK: Final = 512
BUCKETS: Final = 512
"""Of a strip, at the most."""
NEWEST: Final = 12
"""Sessions that an overview shows."""
_LONG: Final = {"messages", "tokens", "tools", "template_kwargs"}
"""What a tree leaves out."""
SUMMARY: Final = ("branches", "reward", "rewarded", "output_tokens", "version_min", "version_max", "last_activity_at")
"""Of a session's line: what follows from its turns."""
_NAMES: Final = ("session_id", "task_id", "group_id", "state", "outcome", "outcome_reason", "fate", "ordinal")
_FIGURES: Final = ("created_at", "turns", "tokens", "in_flight", *SUMMARY)


def session_of_status(status: SessionStatus) -> Json:
    """A session's line in the list. None: not known."""
    return {
        "key": status.session_id,
        "group": safe_name(status.group_id),
        "source": "fleet",
        **{name: getattr(status, name) for name in (*_NAMES, *_FIGURES)},
    }


def newest(lines: Sequence[Json]) -> Json:
    """What an overview says of the list: how long it is, and how it begins."""
    return {"sessions": len(lines), "newest": list(lines[:NEWEST])}


def tree_document(
    session: Mapping[str, Any], turns: Sequence[ShownTurn], branches: Sequence[str] | None = None
) -> Json:
    """Turns as lines of a tree, and the last turn of each branch; by default those that no other extends."""
    extended = {turn.parent_id for turn in turns}
    ends = [turn.turn_id for turn in turns if turn.turn_id not in extended] if branches is None else list(branches)
    lines = [
        turn.model_dump(exclude=_LONG) | {"name": safe_name(turn.turn_id), "depth": depth, "forks": forks}
        for turn, depth, forks in limbs(turns)
    ]
    return {"session": dict(session), "turns": lines, "branches": ends}


def turn_document(turn: ShownTurn, *, tokens: int, strip: Sequence[float] | None) -> Json:
    """A turn with all of its messages. `tokens`: how many own ones it has; `strip`: None where that is asked for
    apart, as the turn is long."""
    return turn.model_dump(exclude={"tokens"}) | {
        "name": safe_name(turn.turn_id),
        "tokens": tokens,
        "chunks": math.ceil(tokens / TOKENS_A_CHUNK),
        "strip": strip,
    }


def strip(logprobs: Sequence[float]) -> list[float]:
    """The mean probability of an output's tokens, in buckets of about the same number of tokens."""
    count = min(BUCKETS, len(logprobs))
    ends = [len(logprobs) * place // count for place in range(count + 1)] if count else []
    return [
        round(sum(math.exp(min(0.0, each)) for each in logprobs[start:end]) / (end - start), 6)
        for start, end in pairwise(ends)
    ]


def part_of(tokens: ShownTokens, start: int, end: int) -> ShownTokens:
    """Those of a turn's own tokens from `start` to before `end`, as far as they are there."""
    first, last = max(0, start - tokens.start), max(0, end - tokens.start)
    parts = {name: getattr(tokens, name)[first:last] for name in TOKEN_LISTS}
    said = {name: numbers[first:last] for name, numbers in tokens.annotations.items()}
    return tokens.model_copy(update={"start": tokens.start + first, **parts, "annotations": said})


def chunk_document(tokens: ShownTokens, number: int) -> Json:
    """A chunk of a turn's own tokens."""
    start = TOKENS_A_CHUNK * number
    return part_of(tokens, start, start + TOKENS_A_CHUNK).model_dump()


def last_words(turn: Mapping[str, Any], most: int) -> str:
    """How a turn's answer ends, of its document."""
    messages: Sequence[Json] = turn["messages"]
    text = said_in(messages[-1]["message"]) if messages else ""
    return text if len(text) <= most else f"…{text[-most:]}"


def summary_of_turns(turns: Iterable[ShownTurn], versions: Iterable[int]) -> Json:
    """The columns of a list that follow from a session's turns."""
    listed = list(turns)
    extended = {turn.parent_id for turn in listed}
    rewarded = [turn for turn in listed if turn.reward is not None]
    own = [turn for turn in rewarded if turn.lineage.kind == "main"] or rewarded
    known = [version for version in versions if version >= 0]
    return {
        "turns": len(listed),
        "tokens": sum(turn.new_prompt_tokens + turn.completion_tokens for turn in listed),
        "output_tokens": sum(turn.completion_tokens for turn in listed),
        "branches": sum(turn.turn_id not in extended for turn in listed),
        "reward": own[-1].reward if own else None,
        "rewarded": len(rewarded),
        "version_min": min(known, default=None),
        "version_max": max(known, default=None),
        "last_activity_at": max((turn.created_at for turn in listed), default=None) or None,
    }
