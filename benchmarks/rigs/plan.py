"""How long and how often a bench measures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Plan:
    """`pairs` of runs, each with `warmup` and `window` seconds; `sessions` are the two sizes of the memory rig."""

    pairs: int = 3
    warmup: float = 5.0
    window: float = 30.0
    sessions: tuple[int, int] = (2_000, 10_000)
    growth_sessions: int = 80
    churn_sessions: int = 40
    reclaimed_sessions: int = 10_000
    restarts: int = 10
    crowd: int = 1600
    """Calls in flight of the second load under which `/health` is asked; 0 leaves that load out."""
    fleets: int = 500
    viewing_pairs: int = 10
    dialect_sessions: int = 8
    dialect_turns: int = 20
    """Of each recorded conversation, from its beginning."""
    r1_servers: tuple[int, ...] = (1, 2, 4, 8)
    r1_in_flight: tuple[int, ...] = (50, 100, 200, 400, 800, 1600)
    seed: int = 1
    model: Path | None = None
    """A model directory to use instead of the rigs' own."""

    @classmethod
    def quick(cls) -> Self:
        """Windows of 4 s: shows that the rigs work; the figures are not to be quoted."""
        return cls(
            pairs=1,
            warmup=1.0,
            window=4.0,
            sessions=(50, 500),
            growth_sessions=2,
            churn_sessions=8,
            reclaimed_sessions=500,
            restarts=1,
            crowd=0,
            fleets=20,
            viewing_pairs=1,
            dialect_sessions=2,
            dialect_turns=3,
            r1_servers=(1, 2),
            r1_in_flight=(50, 400),
        )
