"""Which fleet a command talks to: the one whose `up` runs here, or the one that is named."""

from pathlib import Path
from typing import Annotated, Final

import typer

from rolloutfleet.cli.failures import wrong
from rolloutfleet.fleet.exceptions import BadArgument
from rolloutfleet.fleet.whereabouts import ADDRESS_BOOK, STATE_ROOT, Whereabouts

StateDir = Annotated[
    Path | None,
    typer.Option("--state-dir", metavar="DIR", help="The state folder that `up` was given, or made."),
]
FleetFile = Annotated[
    Path | None,
    typer.Option(
        "--fleet-file",
        metavar="FILE",
        envvar="ROLLOUTFLEET_FLEET_FILE",
        help="The fleet.json of a local fleet.",
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="ROLLOUTFLEET_URL",
        help="The address of any proxy of the fleet, or its public address.",
    ),
]
AdminKeyFile = Annotated[
    Path | None,
    typer.Option(
        "--admin-key-file",
        metavar="FILE",
        envvar="ROLLOUTFLEET_ADMIN_KEY_FILE",
        help="A file with the admin key; goes with --url.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


_OPTIONS: Final = {"url": "--url: ", "admin_key_file": "--admin-key-file: "}
"""What the command line calls the arguments of `Whereabouts`; what is wrong with a fleet's file names the file."""


def find_fleet(
    *, state_dir: Path | None, fleet_file: Path | None, url: str | None, admin_key_file: Path | None
) -> Whereabouts:
    """Raises CommandFailed (exit status 2) where no fleet, or more than one, is meant."""
    if url is not None and state_dir is not None:
        raise wrong("--url and --state-dir name two fleets; keep one")
    if url is not None and admin_key_file is None:
        raise wrong("--url needs --admin-key-file, a file with the fleet's admin key")
    try:
        if url is not None:
            return Whereabouts.from_url(url, admin_key_file=admin_key_file)
        book = state_dir / ADDRESS_BOOK if state_dir is not None else fleet_file or _only_fleet_here()
        return Whereabouts.from_file(book, admin_key_file=admin_key_file)
    except BadArgument as error:
        raise wrong(f"{_OPTIONS.get(error.argument, '')}{error.why}") from None


def _only_fleet_here() -> Path:
    books = sorted(STATE_ROOT.glob(f"*/{ADDRESS_BOOK}"))
    if len(books) == 1:
        return books[0]
    if not books:
        raise wrong(
            f"no fleet runs from {STATE_ROOT.absolute()}; start one with `rolloutfleet up FILE`, or say "
            "--state-dir, --fleet-file, or --url and --admin-key-file"
        )
    names = ", ".join(str(book.parent) for book in books)
    raise wrong(f"several fleets run from here; choose one with --state-dir: {names}")
