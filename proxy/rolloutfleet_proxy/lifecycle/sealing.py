"""Sessions that are being dumped. A call that comes meanwhile waits: dumped, it gets 410; not dumped, it is served."""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class Seals:
    """The sessions that are sealed now, by name. Used on the event loop alone."""

    def __init__(self) -> None:
        self._opened: dict[str, asyncio.Event] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._opened

    @contextmanager
    def sealed(self, names: Iterable[str]) -> Iterator[None]:
        """Nobody changes these sessions until the block ends, but for those who came before it began."""
        names = list(names)
        opened = asyncio.Event()
        self._opened.update(dict.fromkeys(names, opened))
        try:
            yield
        finally:
            for name in names:
                del self._opened[name]
            opened.set()

    async def opened(self, name: str) -> None:
        """Return once the session is sealed no more; the caller then looks anew at what became of it."""
        while name in self._opened:
            await self._opened[name].wait()
