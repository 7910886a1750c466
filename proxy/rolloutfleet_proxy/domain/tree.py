"""A session's tree of turns: which of them a request continues.

Pure. A node knows its own messages only by digest (`messages.Conversation`): the chain after its request's
messages, the chain after its own answer, the digests of the reasoning that its own messages carry, and the ids of
their tool calls.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from rolloutfleet_proxy.domain.lineage import MAIN, Lineage
from rolloutfleet_proxy.domain.messages import Conversation

_NODE_BYTES = 600
_REASONING_BYTES = 150
_CALL_BYTES = 100


class Node(msgspec.Struct, frozen=True):
    """A turn. Its own messages are those from `start` to `length`: what its request added, and its answer."""

    turn: int
    """The turn's number in its session; a higher one is newer."""
    parent: int | None
    start: int
    """The parent's length; 0 for a turn without parent."""
    length: int
    """Messages up to and with the turn's answer."""
    history: bytes
    """The chain after the answer."""
    reasonings: tuple[tuple[int, bytes], ...] = ()
    """(index, digest) of those own messages that carry reasoning."""
    call_ids: tuple[str | None, ...] = ()
    """Of the tool calls of its own messages, in order."""
    lineage: Lineage = MAIN


class Tree:
    """The turns of one session, found by history."""

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes: dict[int, Node] = {}
        self._by_history: dict[bytes, list[Node]] = {}
        self._children: dict[int | None, list[Node]] = {}
        self._reasonings = 0
        self._calls = 0
        for node in nodes:
            self.add(node)

    @property
    def nbytes(self) -> int:
        """About how much memory the tree takes, for a cache that is bounded in bytes."""
        return _NODE_BYTES * (1 + len(self._nodes)) + _REASONING_BYTES * self._reasonings + _CALL_BYTES * self._calls

    def add(self, node: Node) -> None:
        """Add a turn, after its parent.

        Raises ValueError where the number is taken, the parent is unknown, or the messages don't start where
        the parent's end.
        """
        if node.turn in self._nodes:
            raise ValueError(f"turn {node.turn} is in the tree already")
        start = 0 if node.parent is None else self._parent_of(node).length
        if node.start != start or node.length <= start:
            raise ValueError(
                f"turn {node.turn} holds messages {node.start} to {node.length}; its parent ends at {start}"
            )
        self._nodes[node.turn] = node
        self._by_history.setdefault(node.history, []).append(node)
        self._children.setdefault(node.parent, []).append(node)
        self._reasonings += len(node.reasonings)
        self._calls += len(node.call_ids)

    def children(self, turn: int | None) -> list[Node]:
        """The turns that continue `turn`, oldest first; those without parent for None."""
        return list(self._children.get(turn, ()))

    def has_turns_of(self, lineage: Lineage) -> bool:
        """Whether a turn of that lineage is here. Nearly always the first one is."""
        return any(node.lineage == lineage for node in self._nodes.values())

    def call_ids(self, node: Node) -> list[str | None]:
        """The ids of all tool calls of a turn and of those that it continues, in order."""
        path = [node.call_ids]
        while node.parent is not None:
            node = self._nodes[node.parent]
            path.append(node.call_ids)
        return [call_id for ids in reversed(path) for call_id in ids]

    def matches(self, conversation: Conversation, lineage: Lineage = MAIN) -> list[Node]:
        """The turns whose history is a prefix of the conversation, deepest first; of equal ones those of the same
        lineage first, then the newest.

        Reasoning that the conversation leaves out matches; reasoning that it changes, or adds, doesn't.
        """
        chains, reasonings = conversation.chains, conversation.reasonings
        alike: dict[int, bool] = {}
        found: list[Node] = []
        for length in range(len(chains) - 1, 0, -1):
            nodes = self._by_history.get(chains[length])
            if nodes is None:
                continue
            equal = [node for node in nodes if node.length == length and self._is_alike(node, reasonings, alike)]
            equal.sort(key=lambda node: (node.lineage == lineage, node.turn), reverse=True)
            found += equal
        return found

    def _parent_of(self, node: Node) -> Node:
        parent = None if node.parent is None else self._nodes.get(node.parent)
        if parent is None:
            raise ValueError(f"turn {node.turn} has an unknown parent, {node.parent}")
        return parent

    def _is_alike(self, node: Node, reasonings: Sequence[bytes | None], alike: dict[int, bool]) -> bool:
        """Whether a turn and all it continues reasoned as is given. `alike` keeps what was found, for the next."""
        path = []
        current: Node | None = node
        while current is not None and current.turn not in alike:
            path.append(current)
            current = None if current.parent is None else self._nodes[current.parent]
        result = current is None or alike[current.turn]
        for each in reversed(path):
            result = result and _own_is_alike(each, reasonings)
            alike[each.turn] = result
        return result


def _own_is_alike(node: Node, reasonings: Sequence[bytes | None]) -> bool:
    own = dict(node.reasonings)
    for index in range(node.start, node.length):
        given = reasonings[index]
        if given is not None and own.get(index) != given:
            return False
    return True
