"""The signals that end a command which otherwise runs on."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Final

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextlib.contextmanager
def ending_signals(on_signal: Callable[[signal.Signals], None]) -> Iterator[None]:
    """Have the running loop call `on_signal` with each that comes, until the block ends.

    A SIGHUP that is ignored stays so: `nohup` has the command outlive its terminal.
    """
    loop = asyncio.get_running_loop()
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    heard = [number for number in ENDING if not (ignored and number is signal.SIGHUP)]
    for number in heard:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
