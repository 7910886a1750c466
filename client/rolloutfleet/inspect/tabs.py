"""News for the open tabs, as server-sent events: one queue for each, and none grows.

Who takes nothing for too long loses what waits, and is told to read again what it shows.
"""

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final

MOST_TABS: Final = 64
MOST_WAITING: Final = 256
RESET: Final = b"event: reset\ndata: {}\n\n"
"""Something was missed: read again what is shown."""


class Tab:
    """What one tab has still to be told."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._news = asyncio.Event()
        self.closed = False

    def put(self, event: bytes) -> None:
        if len(self._waiting) >= MOST_WAITING:
            self._waiting.clear()
            event = RESET
        self._waiting.append(event)
        self._news.set()

    def close(self) -> None:
        self.closed = True
        self._news.set()

    async def take(self, seconds: float) -> bytes:
        """All that waits, together; empty where nothing came for so long, or the tab was closed."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._news.wait()
        self._news.clear()
        found = b"".join(self._waiting)
        self._waiting.clear()
        return found


class Tabs:
    """All that are open."""

    def __init__(self) -> None:
        self._open: set[Tab] = set()
        self._closed = False

    @property
    def full(self) -> bool:
        """Whether no further one is served."""
        return len(self._open) >= MOST_TABS or self._closed

    @contextlib.contextmanager
    def opened(self) -> Iterator[Tab]:
        """A further one; closed already, where there is no room."""
        tab = Tab()
        if self.full:
            tab.close()
        self._open.add(tab)
        try:
            yield tab
        finally:
            self._open.discard(tab)

    def tell(self, event: str, data: Mapping[str, Any]) -> None:
        """Tell all of them; nobody is waited for."""
        block = RESET if event == "reset" else f"event: {event}\ndata: {json.dumps(data)}\n\n".encode()
        for tab in self._open:
            tab.put(block)

    def close(self) -> None:
        """End their streams, and open no more."""
        self._closed = True
        for tab in self._open:
            tab.close()
