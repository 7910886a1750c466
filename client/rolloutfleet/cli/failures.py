"""How a command says that it can't do what it was asked."""

import sys
from collections.abc import Sequence

from rolloutfleet.fleet.exceptions import FleetError, Refused


class CommandFailed(Exception):
    """One clear line for a person, and the exit status: 2 for a mistake in the asking, else 1."""

    def __init__(self, message: str, *, exit_code: int) -> None:
        self.exit_code = exit_code
        super().__init__(message)


def wrong(message: str) -> CommandFailed:
    """The caller asked for something that can't be."""
    return CommandFailed(message, exit_code=2)


def failed(message: str) -> CommandFailed:
    """What was asked for went wrong."""
    return CommandFailed(message, exit_code=1)


def failed_by(error: FleetError) -> CommandFailed:
    """A proxy refused it, for what was asked or otherwise, or none answered."""
    of_the_asking = isinstance(error, Refused) and 400 <= error.status < 500
    return wrong(str(error)) if of_the_asking else failed(str(error))


def fail(error: CommandFailed) -> int:
    """Say it on the error output; the exit status."""
    warn(error)
    return error.exit_code


def warn(error: CommandFailed) -> None:
    """Say it on the error output."""
    for line in str(error).splitlines():
        print(f"rolloutfleet: {line}", file=sys.stderr)


def warn_unless_all_failed(problems: Sequence[CommandFailed], *, answered: bool) -> None:
    """Say on the error output what went wrong with some proxies. Raises the first where none answered."""
    if problems and not answered:
        raise problems[0]
    for problem in problems:
        warn(problem)
