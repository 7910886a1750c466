"""A thread that works beside a load, from when its block is entered until it is left."""

import threading
from types import TracebackType
from typing import Self


class Background(threading.Thread):
    """`run` goes on until `_left` is set, which leaving the block does; that waits for its end."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self._left = threading.Event()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self.join()
