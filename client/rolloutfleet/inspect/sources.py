"""Where what is shown comes from: a fleet, or a folder of files."""

from typing import Any, Protocol

Json = dict[str, Any]


class NotThere(Exception):
    """Nothing is called so (any more)."""


class NotNow(Exception):
    """It can't be read at the moment; the message says why, in words that may be shown."""


class Source(Protocol):
    """What pages and bundles are made of. Names are those of paths (`names`).

    All raise NotThere and NotNow.
    """

    live: bool
    """True where what it shows goes on: that of a fleet does while it is `running`."""

    def seen(self) -> None:
        """Somebody looks on."""

    async def overview(self) -> Json:
        """data/fleet.json."""

    async def sessions(self) -> tuple[list[Json], bool]:
        """Lines of the list, newest first; whether those are all."""

    async def tree(self, key: str) -> Json:
        """data/sessions/KEY/tree.json."""

    async def turn(self, key: str, turn: str) -> Json:
        """data/sessions/KEY/turns/TURN.json."""

    async def strip(self, key: str, turn: str) -> Json:
        """data/sessions/KEY/turns/TURN/strip.json, of a turn whose own document has none."""

    async def chunk(self, key: str, turn: str, number: int) -> Json:
        """data/sessions/KEY/turns/TURN/tokens/N.json."""

    async def command(self, key: str) -> str | None:
        """What asks for a session's conversation in a shell; None where no fleet can be asked."""
