"""`rolloutfleet up`: run a fleet on this machine until Ctrl-C."""

import asyncio
import contextlib
import os
import shlex
import signal
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rolloutfleet.cli.failures import CommandFailed, failed, need_extra, wrong
from rolloutfleet.cli.options import read_duration
from rolloutfleet.cli.show import console, table
from rolloutfleet.ending import ending_signals
from rolloutfleet.fleet.whereabouts import ADDRESS_BOOK, STATE_ROOT

if TYPE_CHECKING:
    from rolloutfleet.spec import RolloutFleet
    from rolloutfleet_operator.local import ChildEvent, EnginesAwaited, LocalFleet

MARKS = {
    "starting": Text("…", "yellow"),
    "ready": Text("✓", "green"),
    "stopping": Text("…", "yellow"),
    "ended": Text("✗", "red"),
}
FIRST_LINE: Final = 2.0
"""Seconds of a wait at which a log is first told of it."""
LONGEST_SILENCE: Final = 60.0


def up(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A RolloutFleet resource, as for kubectl apply.")],
    state_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where stores, keys, ports and logs are kept [default: ./.rolloutfleet/NAME]."
        ),
    ] = None,
    engine_key_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The key that engines of gateway.engines.urls require.")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(
            metavar="FRACTION",
            min=0,
            max=1,
            help="Keep copies of this share of the trained sessions, to look at them later; before inspect.keep.",
        ),
    ] = None,
    wait: Annotated[
        str | None,
        typer.Option(
            metavar="DURATION",
            help="How long to wait for engines that don't answer yet, such as 30m [default: until Ctrl-C].",
        ),
    ] = None,
    new_ports: Annotated[
        bool,
        typer.Option(
            "--new-ports",
            help="Choose new ports if other programs use them; base_urls of open sessions there stop working.",
        ),
    ] = False,
) -> None:
    """Run the fleet of FILE as processes of this machine, until Ctrl-C.

    Starts the proxies, the SGLang gateway and, if the resource has `engine`, simulated engines; with
    `gateway.engines.urls` it uses the engines named there, and waits until all of them answer. A process that
    dies is restarted on the same port. Data, addresses and the admin key stay in the state folder: the next `up`
    continues with them. It doesn't start if another program uses one of its ports.
    """
    # No other command needs what a resource may say, which takes a fifth of a second to load.
    from rolloutfleet.specfile import FleetFileError, load_fleet

    try:
        fleet = load_fleet(file)
    except FleetFileError as error:
        raise wrong(str(error)) from None
    if engine_key_file is not None and not engine_key_file.is_file():
        raise wrong(f"--engine-key-file: {engine_key_file} is not a file")
    engines_within = None if wait is None else read_duration("--wait", wait)
    # What a fleet keeps is its user's own: keys, conversations, tokens.
    os.umask(0o077)
    # Nothing runs yet, so that Ctrl-C may end this process at once, until `_stop_signals` asks it to stop.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    need_extra("local")
    # The proxies' and the executor's packages are heavy, and no other command needs them.
    from rolloutfleet_operator.local import LocalFleet

    screen = _Screen(console())
    folder = state_dir if state_dir is not None else STATE_ROOT / fleet.metadata.name
    local = LocalFleet(
        fleet if keep is None else _keeping(fleet, keep),
        state_dir=folder,
        beside=file.parent,
        report=screen.report,
        report_wait=screen.report_wait,
        engine_key_file=engine_key_file,
        new_ports=new_ports,
        engines_within=engines_within,
    )
    raise typer.Exit(asyncio.run(_run(local, screen, folder=folder)))


def _keeping(fleet: "RolloutFleet", fraction: float) -> "RolloutFleet":
    spec = fleet.spec
    asked = spec.inspect.model_copy(update={"keep": spec.inspect.keep.model_copy(update={"fraction": fraction})})
    return fleet.model_copy(update={"spec": spec.model_copy(update={"inspect": asked})})


async def _run(local: "LocalFleet", screen: "_Screen", *, folder: Path) -> int:
    from rolloutfleet_operator.local import LocalFleetError

    with _stop_signals(local) as asked_to_stop:
        try:
            with screen.starting():
                came_up = await _unless(asked_to_stop, local.start())
        except LocalFleetError as error:
            raise _start_failure(error, screen) from None
        if not came_up:
            screen.say_awaited()
            return 130
        screen.show_addresses(local, state_dir=folder)
        try:
            await _unless(asked_to_stop, local.wait())
        except LocalFleetError as error:
            raise failed(str(error)) from None
        finally:
            screen.say("stopping; Ctrl-C again kills what is left")
            await local.stop()
    screen.say("stopped")
    return 0


async def _unless(asked_to_stop: asyncio.Event, work: Coroutine[None, None, None]) -> bool:
    """Do the work; False where it was cut off because somebody asked to stop."""
    task = asyncio.create_task(work)
    stop = asyncio.create_task(asked_to_stop.wait())
    await asyncio.wait([task, stop], return_when=asyncio.FIRST_COMPLETED)
    stop.cancel()
    if task.done():
        task.result()
        return True
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return False


@contextlib.contextmanager
def _stop_signals(local: "LocalFleet") -> Iterator[asyncio.Event]:
    """The first Ctrl-C or SIGTERM asks to stop; the second kills."""
    asked = asyncio.Event()

    def on_signal(_: signal.Signals) -> None:
        if asked.is_set():
            local.hurry()
        asked.set()

    try:
        with ending_signals(on_signal):
            yield asked
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _start_failure(error: Exception, screen: "_Screen") -> CommandFailed:
    from rolloutfleet_operator.local import ChildFailed, EnginesMissing

    if isinstance(error, ChildFailed):
        screen.say(f"the end of {error.log}:")
        screen.say(error.log_tail or "(nothing)")
    if isinstance(error, ChildFailed | EnginesMissing):
        return failed(str(error))
    return wrong(str(error))


def next_line(seconds: float) -> float:
    """Seconds of a wait at which a log is told of it again, after it was at `seconds`."""
    return min(2 * seconds, seconds + LONGEST_SILENCE)


class _Screen:
    """What a person sees: progress while the fleet starts, addresses, then a line for what happens."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._phases: dict[str, tuple[str, str]] = {}
        self._live: Live | None = None
        self._awaited: EnginesAwaited | None = None
        self._line_due = FIRST_LINE

    def starting(self) -> contextlib.AbstractContextManager[object]:
        if not self._out.is_terminal:
            return contextlib.nullcontext()
        self._live = Live(console=self._out, transient=True, refresh_per_second=8)
        return self._live

    def report(self, event: "ChildEvent") -> None:
        self._phases[event.name] = (event.phase.value, event.text)
        if self._live is not None and self._live.is_started:
            self._live.update(self._progress())
        elif event.phase.value != "stopping":
            self.say(f"{event.name}: {event.text}")

    def report_wait(self, awaited: "EnginesAwaited") -> None:
        self._awaited = awaited
        if self._live is not None:
            self._live.update(self._progress())
        elif awaited.seconds >= self._line_due:
            self.say(str(awaited))
            self._line_due = next_line(awaited.seconds)

    def say_awaited(self) -> None:
        if self._awaited is not None:
            self.say(f"stopped while {self._awaited}")

    def say(self, text: str) -> None:
        self._out.print(text, soft_wrap=True)

    def _progress(self) -> Group:
        grid = Table.grid(padding=(0, 1))
        for name, (phase, text) in sorted(self._phases.items()):
            grid.add_row(MARKS[phase], name, text)
        return Group(grid, *([] if self._awaited is None else [Text(str(self._awaited))]))

    def show_addresses(self, local: "LocalFleet", *, state_dir: Path) -> None:
        book = local.whereabouts()
        addresses = table("", "address")
        for proxy in book["proxies"]:
            addresses.add_row(f"proxy {proxy['ordinal']}", proxy["url"])
        addresses.add_row("gateway", book["gateway"]["url"])
        for index, engine in enumerate(book["engines"]):
            addresses.add_row(f"engine {index}", engine["url"])
        addresses.add_row("admin key", book["admin_key_file"])
        addresses.add_row("engine key", book["engine_key_file"])
        self._out.print(addresses)
        self.say(
            f"\n{book['name']} is up ({state_dir / ADDRESS_BOOK}). Ctrl-C stops it.\n"
            f"Elsewhere: rolloutfleet status --state-dir {shlex.quote(str(state_dir))}"
        )
