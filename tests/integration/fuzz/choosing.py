"""What a lane asks."""

from collections.abc import Callable

from tests.integration.fuzz import agents, asking
from tests.integration.fuzz.asking import Ask, Lane

MAKERS: tuple[tuple[Callable[[Lane], Ask | None], float], ...] = (
    (asking.health, 3),
    (asking.figures, 2),
    (asking.peers, 1),
    (asking.listing, 2),
    (asking.show, 5),
    (asking.commits, 1),
    (asking.models, 2),
    (asking.start, 8),
    (asking.touch, 2),
    (asking.annotate, 2),
    (agents.chat, 22),
    (agents.messages, 6),
    (agents.count, 2),
    (agents.responses, 6),
    (agents.response, 2),
    (asking.reward, 8),
    (asking.close, 3),
    (asking.delete, 2),
    (asking.export, 7),
    (asking.end_of_lease, 8),
    (asking.put, 6),
    (asking.get, 3),
    (asking.batch, 3),
    (asking.clear, 3),
    (asking.dumps, 2),
)
"""What a lane asks, and how often."""


def something(lane: Lane) -> Ask:
    """What it can ask now, as often as `MAKERS` says."""
    while True:
        [make] = lane.random.choices([make for make, _ in MAKERS], [weight for _, weight in MAKERS])
        asked = make(lane)
        if asked is not None:
            return asked


def any_route(lane: Lane) -> Ask:
    """Each route as often as others: what is seldom right is not seldom wrong."""
    while True:
        make, _ = lane.random.choice(MAKERS)
        asked = make(lane)
        if asked is not None:
            return asked
