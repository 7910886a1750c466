"""How a command says that it can't do what it was asked."""

import sys
from collections.abc import Callable, Mapping
from typing import TypeVar

from rolloutfleet.extras import NotInstalled, need
from rolloutfleet.fleet import BadArgument, FleetError, NotEverywhere, Refused

T = TypeVar("T")


class CommandFailed(Exception):
    """One clear line for a person, and the exit status: 2 for wrong usage, else 1."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


def wrong(message: str) -> CommandFailed:
    """The caller asked for something that can't be."""
    return CommandFailed(message, exit_code=2)


def failed(message: str) -> CommandFailed:
    """What was asked for went wrong."""
    return CommandFailed(message, exit_code=1)


def need_extra(extra: str) -> None:
    """Raises CommandFailed, with the command that installs it, where a module of this extra is missing."""
    try:
        need(extra)
    except NotInstalled as error:
        raise failed(str(error)) from None


def fail(error: CommandFailed | FleetError) -> int:
    """Say it on the error output; the exit status."""
    warn(error)
    if isinstance(error, CommandFailed):
        return error.exit_code
    of_the_asking = isinstance(error, BadArgument) or (isinstance(error, Refused) and 400 <= error.status < 500)
    return 2 if of_the_asking else 1


def warn(error: Exception) -> None:
    """Say it on the error output."""
    for line in str(error).splitlines():
        print(f"rolloutfleet: {line}", file=sys.stderr)


def warn_of(failed_proxies: Mapping[int, str]) -> None:
    """Say on the error output which proxies an answer does not cover, and why."""
    for ordinal, why in sorted(failed_proxies.items()):
        warn(failed(f"proxy {ordinal}: {why}"))


def of_those_that_answer(listed: Callable[[], list[T]]) -> list[T]:
    """What the proxies list; those that don't answer are named on the error output."""
    try:
        return listed()
    except NotEverywhere as error:
        warn_of(error.failed)
        return error.found
