"""Which lineage of an agent run a call is of, as the headers of Claude Code and Codex say. Pure.

Claude Code sends the id of a sub-agent, and of the one that started it; nothing with calls of its main loop. With
`CLAUDE_CODE_GATEWAY_HINT_HEADERS=1` it also says what a request is for (`main`, `subagent`, `workflow`, `compaction`,
`auxiliary`). Codex sends the id of the thread with every call, which is the session's in the main loop; a sub-agent's
calls have the parent's thread, and how it came to be (`collab_spawn`, `review`, `compact`, `memory_consolidation`); in
the turn's metadata stands what a request is for (`turn`, `compaction`, `memory`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from rolloutfleet.wire import LineageKind
from rolloutfleet_proxy.domain.lineage import LABEL_LENGTH, MAIN, Lineage, Lineages

AGENT: Final = "x-claude-code-agent-id"
PARENT_AGENT: Final = "x-claude-code-parent-agent-id"
REQUEST_CLASS: Final = "x-claude-code-request-class"
SESSION: Final = "session-id"
THREAD: Final = "thread-id"
PARENT_THREAD: Final = "x-codex-parent-thread-id"
SUBAGENT: Final = "x-openai-subagent"
TURN_METADATA: Final = "x-codex-turn-metadata"

_HEADERS: Final = frozenset((AGENT, PARENT_AGENT, REQUEST_CLASS, THREAD, PARENT_THREAD, SUBAGENT, TURN_METADATA))
_PARENTS: Final = (PARENT_AGENT, PARENT_THREAD)
_IDS: Final = (AGENT, THREAD, *_PARENTS)
_SIDE_WORK: Final[Mapping[str, LineageKind]] = {
    "compaction": "compaction",
    "compact": "compaction",
    "memory": "other",
    "memory_consolidation": "other",
    "auxiliary": "other",
}
"""What a call is for, where that is no step of an agent's own loop. Other words are those of an ordinary step."""
_AGENTS: Final = frozenset(("subagent", "workflow"))
"""Of `REQUEST_CLASS`."""


class Said(NamedTuple):
    """What a call's headers say."""

    lineage: Lineage
    unusable: tuple[str, ...] = ()
    """Names of headers that say something that is not kept."""


class _TurnMetadata(msgspec.Struct):
    request_kind: str | None = None


_decode_metadata = msgspec.json.Decoder(_TurnMetadata).decode
_NOTHING: Final = Said(MAIN)


def lineage_of(headers: Mapping[str, str], known: Lineages) -> Said:
    """The lineage as the session knows it once a call of it has begun: until then nothing is kept."""
    if _HEADERS.isdisjoint(headers):
        return _NOTHING
    said = read_lineage(headers)
    taken = known.seen(said.lineage)
    if taken == said.lineage:
        return Said(taken, said.unusable)
    return Said(taken, tuple(dict.fromkeys((*said.unusable, *(name for name in _IDS if headers.get(name))))))


def read_lineage(headers: Mapping[str, str]) -> Said:
    """By the headers alone, whose names are in lower case."""
    unusable: list[str] = []
    purpose = _purpose(headers, unusable)
    own_header = AGENT if headers.get(AGENT) else THREAD
    own = headers.get(own_header, "")
    in_main = not own or own == headers.get(SESSION)
    kind = _kind(headers, purpose, in_main=in_main)
    if kind == MAIN.kind:
        return Said(MAIN, tuple(unusable))
    name = _usable(headers, own_header, unusable)
    of_thread = MAIN.id if in_main else name
    parent = of_thread if purpose in _SIDE_WORK else _parent(headers, kind, unusable)
    return Said(Lineage(name, kind, parent), tuple(unusable))


def _purpose(headers: Mapping[str, str], unusable: list[str]) -> str:
    """What the call is for, in the client's word; empty where it says none."""
    metadata = headers.get(TURN_METADATA)
    if metadata:
        try:
            found = _decode_metadata(metadata).request_kind or ""
        except (msgspec.DecodeError, RecursionError):
            unusable.append(TURN_METADATA)
        else:
            if found in _SIDE_WORK:
                return found
    return headers.get(REQUEST_CLASS, "")


def _kind(headers: Mapping[str, str], purpose: str, *, in_main: bool) -> LineageKind:
    origin = headers.get(SUBAGENT, "")
    side_work = _SIDE_WORK.get(purpose) or _SIDE_WORK.get(origin)
    if side_work is not None:
        return side_work
    if origin or purpose in _AGENTS or any(headers.get(name) for name in (AGENT, *_PARENTS)):
        return "subagent"
    return "main" if in_main else "other"


def _parent(headers: Mapping[str, str], kind: LineageKind, unusable: list[str]) -> str | None:
    """A sub-agent that names no other was started by the main loop."""
    named = next((name for name in _PARENTS if headers.get(name)), None)
    if named is None:
        return MAIN.id if kind == "subagent" else None
    return MAIN.id if headers[named] == headers.get(SESSION) else _usable(headers, named, unusable)


def _usable(headers: Mapping[str, str], name: str, unusable: list[str]) -> str | None:
    """The value of a header as an id; None where there is none, or it can't be kept."""
    value = headers.get(name)
    if not value:
        return None
    if len(value) > LABEL_LENGTH or not (value.isascii() and value.isprintable()):
        unusable.append(name)
        return None
    return value
