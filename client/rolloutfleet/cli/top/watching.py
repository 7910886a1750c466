"""The screen as time goes by: looks at the fleet, keys, signals."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from rich.live import Live

from rolloutfleet.cli.options import quiet
from rolloutfleet.cli.show import console
from rolloutfleet.cli.top.screen import Display, shown
from rolloutfleet.ending import ending_signals
from rolloutfleet.fleet import AsyncFleet, FleetError
from rolloutfleet.viewing.figures import FleetFigures, Sample, figures, take_sample

LONG: Final = 2.0
"""Seconds of a wait that are worth a line."""


@dataclass(slots=True)
class _State:
    """What is on the screen."""

    view: Display
    last: Sample
    fleet: FleetFigures
    trouble: str = ""
    quit: bool = False
    ended_by: signal.Signals | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def press(self, keys: str) -> None:
        for key in keys:
            self.quit = self.quit or key == "q"
            self.view = self.view.after(key)
        self.changed.set()

    def end(self, by: signal.Signals) -> None:
        self.quit, self.ended_by = True, by
        self.changed.set()

    def take(self, look: Sample) -> None:
        self.last, self.fleet, self.trouble = look, figures(self.last, look), ""
        self.changed.set()

    def fail(self, why: str) -> None:
        self.trouble = f"{why} (the figures are those of the last answer)"
        self.changed.set()


async def watch(fleet: AsyncFleet, view: Display) -> signal.Signals | None:
    """Show it until somebody ends it; the signal that did. Closes it. Raises FleetError where the first look fails."""
    screen = console()
    async with fleet:
        first = await take_sample(fleet)
        state = _State(view, first, figures(first, first))
        with quiet(), _keys(state), _signals(state), Live(console=screen, screen=True, auto_refresh=False) as live:
            looking = asyncio.create_task(_look_on(fleet, state))
            looking.add_done_callback(lambda _: state.changed.set())
            try:
                while not (state.quit or looking.done()):
                    state.changed.clear()
                    live.update(shown(state.fleet, state.view, width=screen.width, trouble=state.trouble), refresh=True)
                    await state.changed.wait()
            finally:
                looking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await looking
        return state.ended_by


async def _look_on(fleet: AsyncFleet, state: _State) -> None:
    while True:
        await asyncio.sleep(state.view.interval)
        try:
            state.take(await _sample(fleet, state))
        except FleetError as error:
            state.fail(str(error))


async def _sample(fleet: AsyncFleet, state: _State) -> Sample:
    """Says on the screen how long the answer has been awaited, where that takes long. Raises FleetError."""
    looking, waited = asyncio.create_task(take_sample(fleet)), 0.0
    try:
        while not (await asyncio.wait({looking}, timeout=LONG))[0]:
            waited += LONG
            state.fail(f"no answer for {waited:.0f} s")
        return await looking
    finally:
        looking.cancel()


@contextlib.contextmanager
def _signals(state: _State) -> Iterator[None]:
    """They end it in order, so that the terminal is as it was; another size is drawn at once."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGWINCH, state.changed.set)
    try:
        with ending_signals(state.end):
            yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)


@contextlib.contextmanager
def _keys(state: _State) -> Iterator[None]:
    """Keys are read as they are pressed, and not shown, where there is a keyboard."""
    if not sys.stdin.isatty():
        yield
        return
    import termios
    import tty

    loop, keyboard = asyncio.get_running_loop(), sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, _read, keyboard, state)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _read(keyboard: int, state: _State) -> None:
    pressed = os.read(keyboard, 64).decode(errors="replace")
    if pressed:
        state.press(pressed)
    else:
        asyncio.get_running_loop().remove_reader(keyboard)
