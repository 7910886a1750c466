"""The signals that end a command, and the one that `nohup` has ignored."""

import asyncio
import signal
from collections.abc import Iterator

import pytest

from rolloutfleet.ending import ENDING, ending_signals


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in ENDING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def heard(at_the_start: signal.Handlers) -> list[signal.Signals]:
    """Those of all that come; SIGHUP had that disposition."""
    signal.signal(signal.SIGHUP, at_the_start)
    came: list[signal.Signals] = []

    async def listen() -> None:
        with ending_signals(came.append):
            for number in ENDING:
                signal.raise_signal(number)
                await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(listen())
    return came


def test_every_ending_signal_is_heard() -> None:
    assert heard(signal.SIG_DFL) == [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]


def test_a_hangup_that_was_ignored_at_the_start_stays_ignored() -> None:
    assert heard(signal.SIG_IGN) == [signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
