"""Which fleet a command talks to: the one whose `up` runs here, or the one that is named."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from rolloutfleet.cli.failures import CommandFailed, wrong

STATE_ROOT = Path(".rolloutfleet")
ADDRESS_BOOK = "fleet.json"

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a fleet answers, and the key to it."""

    urls: tuple[str, ...]
    all_known: bool
    """True: these are all proxies. False: one address, which knows the others."""
    admin_key: str


def find_fleet(
    *, state_dir: Path | None, fleet_file: Path | None, url: str | None, admin_key_file: Path | None
) -> Whereabouts:
    """Raises CommandFailed (exit status 2) where no fleet, or more than one, is meant."""
    if url is not None:
        if state_dir is not None:
            raise wrong("--url and --state-dir name two fleets; keep one")
        if admin_key_file is None:
            raise wrong("--url needs --admin-key-file, a file with the fleet's admin key")
        return Whereabouts(urls=(url.rstrip("/"),), all_known=False, admin_key=_key(admin_key_file))
    if state_dir is not None:
        fleet_file = state_dir / ADDRESS_BOOK
    book_file = fleet_file if fleet_file is not None else _only_fleet_here()
    book = _read_book(book_file)
    try:
        urls = tuple(str(proxy["url"]) for proxy in book["proxies"])
        key_file = Path(book["admin_key_file"])
    except (KeyError, TypeError):
        raise wrong(f"{book_file} is no fleet.json of a local fleet") from None
    if not urls:
        raise wrong(f"the fleet of {book_file} has no proxies")
    return Whereabouts(urls=urls, all_known=True, admin_key=_key(admin_key_file or key_file))


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


def _read_book(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise _not_running(file) from None
    except OSError as error:
        raise wrong(f"{file} can't be read: {error.strerror}") from None
    except ValueError:
        raise wrong(f"{file} is no fleet.json of a local fleet") from None


def _not_running(file: Path) -> CommandFailed:
    return wrong(f"no fleet runs from {file.parent}: there is no {file.name} in it while none is up")


def _key(file: Path) -> str:
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise wrong(f"the admin key file {file} can't be read: {reason}") from None
    if not key:
        raise wrong(f"the admin key file {file} is empty")
    # While a key is being rotated the file has two, one a line.
    return key.splitlines()[0].strip()
