"""The command line: `rolloutfleet up`, and commands that ask a fleet."""

import io
import signal
import sys
from typing import Annotated

import typer

from rolloutfleet.cli import (
    dumps,
    export,
    inspect,
    prometheus,
    session_list,
    sessions,
    show_session,
    status,
    tail,
    top,
    up,
)
from rolloutfleet.cli.encoding import allow_any_terminal
from rolloutfleet.cli.failures import CommandFailed, fail, failed
from rolloutfleet.cli.options import help_unless_asked
from rolloutfleet.fleet import FleetError
from rolloutfleet.installed import own_version

HELP = (
    "Run a fleet of capture proxies on this machine, and look into any fleet.\n\n"
    "[bold]rolloutfleet up FILE[/bold] starts what a RolloutFleet resource describes. The other commands find a "
    "fleet by themselves when they run where `up` did; otherwise give --state-dir, --fleet-file, or --url with "
    "--admin-key-file."
)

app = typer.Typer(
    name="rolloutfleet", help=HELP, add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False
)
app.command("up")(up.up)
app.command("status")(status.status)
app.command("top")(top.top)
app.add_typer(sessions.app, name="session")
app.command("sessions", help="The same as [bold]session list[/bold].")(session_list.list_sessions)
app.command("turns")(sessions.turns)
app.command("show")(show_session.show)
app.command("tail")(tail.tail)
app.command("inspect")(inspect.inspect)
app.command("export")(export.export)
app.command("ack")(export.ack)
app.command("release")(export.release)
app.add_typer(dumps.app, name="dumps")
app.command("prometheus")(prometheus.prometheus)


def show_version(asked: bool) -> None:
    """Print the release, and do nothing else."""
    if asked:
        typer.echo(f"rolloutfleet {own_version()}")
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", callback=show_version, is_eager=True)
]


@app.callback(invoke_without_command=True)
def rolloutfleet(context: typer.Context, version: Version = False) -> None:
    help_unless_asked(context)


def main() -> None:
    """Run a command. Exit status 0: done; 1: it failed; 2: it was asked for wrongly; 130: Ctrl-C ended it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    allow_any_terminal()
    try:
        status_code = app(standalone_mode=False, prog_name="rolloutfleet")
        sys.stdout.flush()
    except (CommandFailed, FleetError) as error:
        sys.exit(fail(error))
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except OSError as error:
        # Python would write what is left as it ends, and fail again.
        sys.stdout = io.StringIO()
        # Where the reader had enough (`rolloutfleet turns S | head`), there is nobody to tell.
        sys.exit(1 if isinstance(error, BrokenPipeError) else fail(failed(str(error))))
    except Exception as error:
        # typer's own exceptions have moved between its versions; what they can do has not.
        explain = getattr(error, "format_message", None)
        if explain is None:
            raise
        sys.exit(fail(CommandFailed(_usage(explain(), getattr(error, "ctx", None)), exit_code=2)))
    sys.exit(status_code if isinstance(status_code, int) else 0)


def _usage(message: str, context: typer.Context | None) -> str:
    """A usage error as one line; typer's own text is a box of several."""
    command = context.command_path if context is not None else "rolloutfleet"
    return f"{message.rstrip('.')} (see {command} --help)"
