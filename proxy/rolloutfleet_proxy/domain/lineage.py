"""Lineages: the lines of work within one agent run, each of which goes on from its own turns. Pure.

A run's main loop, its sub-agents and its compactions call at the same time, with one key. Which of them made a call its
client says in headers (`dialects.lineage_headers` reads them). That is a label, and no more: it decides which of equal
turns is continued, what a trainer trains on and where a reward goes, never what a call may do.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from rolloutfleet.wire import LineageKind

LABEL_LENGTH: Final = 128
"""Characters of an id, printable ones of ASCII."""
LINEAGES: Final = 1_000
"""Of one session; what comes beyond that is known by its kind alone."""


class Lineage(msgspec.Struct, frozen=True):
    """Who made a turn, as far as its client said so."""

    id: str | None
    """The client's name for it, unique among those of its kind; None where it gave none that could be kept."""
    kind: LineageKind
    parent: str | None = None
    """Id of the lineage that it was started by, or that it compacts; None where the client didn't say."""

    @property
    def label(self) -> str:
        """What tells it from others."""
        return self.kind if self.id is None else f"{self.kind}:{self.id}"


MAIN: Final = Lineage("main", "main")
"""The main loop. Turns of which nothing else is known are its own."""


@dataclass(slots=True)
class Lineages:
    """Those of one session. Each is kept once, however many turns it has."""

    _known: dict[Lineage, Lineage] = field(default_factory=lambda: {MAIN: MAIN})

    def __len__(self) -> int:
        return len(self._known)

    def take_in(self, lineage: Lineage) -> Lineage:
        """The lineage as it is known from now on: without id and parent where the session has too many already."""
        seen = self.seen(lineage)
        return self.known(seen) if seen == lineage else seen

    def seen(self, lineage: Lineage) -> Lineage:
        """What `take_in` would say."""
        known = self._known.get(lineage)
        if known is not None:
            return known
        return lineage if len(self._known) < LINEAGES else Lineage(None, lineage.kind)

    def known(self, lineage: Lineage) -> Lineage:
        """That of a turn which has been committed."""
        return self._known.setdefault(lineage, lineage)


def parse_lineage(value: Mapping[str, Any] | None) -> Lineage:
    """Of its JSON; MAIN where there is none."""
    return MAIN if value is None else Lineage(value["id"], value["kind"], value["parent"])
