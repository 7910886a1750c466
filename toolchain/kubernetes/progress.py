"""What long work says of itself, on stderr: what is done, and how long it took."""

import contextlib
import sys
import time
from collections.abc import Iterator


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Says `what` before the block, and its seconds after it, as others may say something meanwhile."""
    say(f"{what} …")
    started = time.monotonic()
    yield
    say(f"{what}: {time.monotonic() - started:.0f} s")
