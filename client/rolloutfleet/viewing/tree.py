"""A session's turns as a tree is drawn: each below its parent, branches further to the right. Pure."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from rolloutfleet.wire import TurnFacts


class Limb(NamedTuple):
    """A turn, and how many branches lie between it and its root. `forks`: it does not stand right below its parent."""

    turn: Any
    depth: int
    forks: bool


def limbs(turns: Sequence[TurnFacts]) -> Iterator[Limb]:
    """In the order of lines: what goes on from a turn first comes last, below the branches beside it, at its own depth.

    A turn whose parent is not among them is a root.
    """
    known = {turn.turn_id for turn in turns}
    children: dict[str | None, list[TurnFacts]] = defaultdict(list)
    for turn in turns:
        children[turn.parent_id if turn.parent_id in known else None].append(turn)
    waiting = [Limb(root, 0, False) for root in reversed(children[None])]
    drawn: set[str] = set()
    while waiting:
        limb = waiting.pop()
        if limb.turn.turn_id in drawn:
            continue
        drawn.add(limb.turn.turn_id)
        yield limb
        behind = children.get(limb.turn.turn_id, [])
        waiting += [Limb(first, limb.depth, len(behind) > 1) for first in behind[:1]]
        waiting += [Limb(other, limb.depth + 1, True) for other in reversed(behind[1:])]
