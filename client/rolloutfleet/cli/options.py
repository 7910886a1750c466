"""What commands share: the fleet that they talk to, which runs here or is named; and groups."""

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from rolloutfleet.cli.failures import wrong
from rolloutfleet.fleet import AsyncFleet, BadArgument, Fleet
from rolloutfleet.fleet.whereabouts import ADDRESS_BOOK, Whereabouts
from rolloutfleet.units import format_duration, parse_duration

R = TypeVar("R")

RETRY_SECONDS: Final = 2.0
"""How long a command is patient with proxies that restart or ask to wait. Somebody looks on."""

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_ARGUMENTS: Final = {"url": "--url: ", "admin_key_file": "--admin-key-file: "}
"""What the command line calls the arguments of `Whereabouts`; what is wrong with a fleet's file names the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """The options by which a fleet is named, of every command that asks one."""

    state_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="The state folder of `rolloutfleet up`.")] = None
    fleet_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", envvar="ROLLOUTFLEET_FLEET_FILE", help="The fleet.json of a local fleet."),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            envvar="ROLLOUTFLEET_URL",
            help="The address of any proxy of the fleet, or its public address.",
        ),
    ] = None
    admin_key_file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar="ROLLOUTFLEET_ADMIN_KEY_FILE", help="A file with the admin key; needed with --url."
        ),
    ] = None

    def fleet(self) -> Fleet:
        """The fleet that is meant, to be closed. Raises CommandFailed as `find`."""
        return Fleet(self.find(), patience=RETRY_SECONDS, progress=False)

    def async_fleet(self) -> AsyncFleet:
        """The same for a command that has an event loop."""
        return AsyncFleet(self.find(), patience=RETRY_SECONDS, progress=False)

    def find(self) -> Whereabouts:
        """Raises CommandFailed (exit status 2) where no fleet, or more than one, is meant."""
        if self.url is not None and self.state_dir is not None:
            raise wrong("--url and --state-dir name two fleets; keep one")
        if self.url is not None and self.admin_key_file is None:
            raise wrong("--url needs --admin-key-file, a file with the fleet's admin key")
        book = self.state_dir / ADDRESS_BOOK if self.state_dir is not None else self.fleet_file
        try:
            if self.url is not None:
                return Whereabouts.from_url(self.url, admin_key_file=self.admin_key_file)
            return Whereabouts.from_file(book, admin_key_file=self.admin_key_file)
        except BadArgument as error:
            how = "" if self.url or book else " (--state-dir, --fleet-file, or --url and --admin-key-file)"
            raise wrong(f"{_ARGUMENTS.get(error.argument, '')}{error.why}{how}") from None


def takes_options(command: Callable[..., R]) -> Callable[..., R]:
    """The command with the fields of a dataclass, each an option, in the place of a parameter of that type."""
    own = inspect.signature(command).parameters
    grouped = {name: each.annotation for name, each in own.items() if isinstance(each.annotation, type)}
    grouped = {name: kind for name, kind in grouped.items() if is_dataclass(kind)}
    options = {name: inspect.signature(kind).parameters for name, kind in grouped.items()}
    parameters = [
        each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, parameter in own.items()
        for each in (options[name].values() if name in options else [parameter])
    ]

    @wraps(command)
    def run(**given: Any) -> R:
        made = {name: kind(**{each: given.pop(each) for each in options[name]}) for name, kind in grouped.items()}
        return command(**given, **made)

    run.__annotations__ = {each.name: each.annotation for each in parameters}
    run.__dict__["__signature__"] = inspect.Signature(parameters)
    return run


def group(help: str) -> typer.Typer:
    """A group that commands can be added to, like `rolloutfleet session`; without a further word it explains itself."""
    made = typer.Typer(help=help, rich_markup_mode="rich", pretty_exceptions_enable=False)
    made.callback(invoke_without_command=True)(help_unless_asked)
    return made


def help_unless_asked(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """What the library would warn of on the error output is shown by the command itself."""
    log, handler = logging.getLogger("rolloutfleet.fleet"), logging.NullHandler()
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


def read_duration(option: str, given: str) -> float:
    """Seconds of that option. Raises CommandFailed for what is not a duration."""
    try:
        return parse_duration(given)
    except ValueError as error:
        raise wrong(f"{option}: {error}") from None


def read_interval(given: str, *, least: float, most: float) -> float:
    """Seconds of an `--interval`. Raises CommandFailed for what is no duration, or not between these seconds."""
    seconds = read_duration("--interval", given)
    if not least <= seconds <= most:
        raise wrong(f"--interval: {given} is not between {format_duration(least)} and {format_duration(most)}")
    return seconds
