"""`rolloutfleet inspect`: a local web page of a fleet, or of what it left in files."""

import asyncio
import contextlib
import html
import shlex
import socket
import sys
import tempfile
import threading
import time
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rolloutfleet.cli.failures import failed, need_extra, warn, warn_of, wrong
from rolloutfleet.cli.options import FleetOptions, quiet, takes_options
from rolloutfleet.cli.show import size
from rolloutfleet.fleet import AsyncFleet
from rolloutfleet.viewing import NoTokenizer, load_texts, safe
from rolloutfleet.wording import counted

if TYPE_CHECKING:
    from rolloutfleet.inspect.bundle import Selection
    from rolloutfleet.inspect.fleet import FleetSource
    from rolloutfleet.inspect.folder import FolderSource
    from rolloutfleet.inspect.tabs import Tabs

PORT: Final = 7433
MOST_SESSIONS: Final = 10_000
"""Of a bundle."""


@takes_options
def inspect(
    port: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            max=65535,
            help=f"The port on 127.0.0.1: by default {PORT}, or a free one where that is in use.",
        ),
    ] = None,
    opens: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in this machine's browser.")] = False,
    dumps: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Show the dumps, kept files and exports in a folder; needs no fleet."),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="The model's, with --dumps: files hold ids, and it has their text."),
    ] = None,
    bundle: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the pages as files that any web server can show, and end.")
    ] = None,
    sessions: Annotated[
        list[str] | None, typer.Option("--session", metavar="ID", help="With --bundle: this session; may be repeated.")
    ] = None,
    task: Annotated[str | None, typer.Option(metavar="ID", help="With --bundle: the sessions of this task.")] = None,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_SESSIONS, help="With --bundle: at most so many, the newest.")
    ] = 100,
    *,
    options: FleetOptions,
) -> None:
    """Look at a fleet in a web browser: its sessions, what was said and sampled in them, and why they forked.

    It prints a URL to open. Each works once, for one browser; whenever one was used, the next is printed. The page is
    served on this machine alone, and only to browsers that were let in that way. From elsewhere, forward the port:

    [bold]ssh -L 7433:127.0.0.1:7433 HOST[/bold]

    Ctrl-C ends it. With --dumps it shows files instead of a fleet. With --bundle it writes what it would show to a
    folder that can be shared; [bold]python -m http.server --directory DIR[/bold] shows that.
    """
    if dumps is not None and not dumps.is_dir():
        raise wrong(f"--dumps: {dumps} is not a folder")
    if tokenizer is not None and dumps is None:
        raise wrong("--tokenizer goes with --dumps: a fleet knows its tokens' text")
    if bundle is None and (sessions or task is not None):
        raise wrong("--session and --task go with --bundle")
    need_extra("inspect")
    fleet = options.async_fleet() if dumps is None else None
    with quiet():
        if bundle is not None:
            from rolloutfleet.inspect.bundle import Selection

            chosen = Selection(session_ids=tuple(sessions or ()), task_id=task, limit=limit)
            asyncio.run(_bundle(fleet, dumps, tokenizer, bundle, chosen))
        else:
            with contextlib.closing(_listening(port)) as listening:
                asyncio.run(_serve(fleet, dumps, tokenizer, listening, opens=opens))


@contextlib.asynccontextmanager
async def _source(
    fleet: AsyncFleet | None, folder: Path | None, tokenizer: Path | None, tabs: "Tabs"
) -> AsyncIterator["FleetSource | FolderSource"]:
    """What is shown. Raises CommandFailed."""
    from rolloutfleet.inspect.fleet import FleetSource
    from rolloutfleet.inspect.folder import FolderSource

    if fleet is None:
        assert folder is not None
        try:
            texts = load_texts(tokenizer)
        except NoTokenizer as error:
            raise failed(safe(error)) from None
        yield FolderSource(folder, texts)
        return
    async with fleet:
        await fleet.proxies()
        yield FleetSource(fleet, tabs, time.monotonic)


async def _serve(
    fleet: AsyncFleet | None, folder: Path | None, tokenizer: Path | None, listening: socket.socket, *, opens: bool
) -> None:
    from rolloutfleet.inspect.serving import serve
    from rolloutfleet.inspect.tabs import Tabs

    tabs = Tabs()
    async with _source(fleet, folder, tokenizer, tabs) as source, source.running():
        with _announcing(opens=opens) as announce:
            await serve(source, tabs, listening, announce)
    print("ended", flush=True)


async def _bundle(
    fleet: AsyncFleet | None, folder: Path | None, tokenizer: Path | None, into: Path, chosen: "Selection"
) -> None:
    from rolloutfleet.inspect.bundle import NotABundle, NothingChosen, write_bundle
    from rolloutfleet.inspect.sources import NotNow
    from rolloutfleet.inspect.tabs import Tabs

    async with _source(fleet, folder, tokenizer, Tabs()) as source:
        await source.refresh()
        found = await source.overview()
        warn_of(found["failed"])
        if found["trouble"]:
            raise failed(safe(found["trouble"]))
        try:
            written = await write_bundle(source, into, chosen, _progress)
        except NotABundle as error:
            raise wrong(f"--bundle: {error}") from None
        except NothingChosen:
            raise failed(f"there is no such session to write; {into} is as it was") from None
        except (NotNow, OSError) as error:
            raise failed(f"the bundle in {into} is incomplete: {safe(error)}") from None
        except asyncio.CancelledError:
            warn(failed(f"the bundle in {into} is incomplete; the same command writes it anew"))
            raise
    for session, why in written.missing.items():
        warn(failed(f"left out: {safe(session)}: {safe(why)}"))
    served = f"python -m http.server --directory {shlex.quote(str(into))}"
    print(f"{counted(written.sessions, 'session')}, {size(written.bytes)}: {served}")


def _progress(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(f"\r{done} of {of} sessions", end="" if done < of else "\n", file=sys.stderr, flush=True)


def _listening(port: int | None) -> socket.socket:
    from rolloutfleet.inspect.serving import ADDRESS, listen

    try:
        return listen(PORT if port is None else port)
    except OSError as error:
        if port is not None:
            raise failed(f"--port: {ADDRESS}:{port} can't be used: {error.strerror}") from None
    return listen(0)


@contextlib.contextmanager
def _announcing(*, opens: bool) -> Iterator[Callable[[str], None]]:
    """Prints URLs; the first may be opened as well."""
    with tempfile.TemporaryDirectory() as private:
        left = [Path(private) / "open.html"] if opens else []
        said = False

        def announce(url: str) -> None:
            nonlocal said
            # A terminal that is gone keeps no browser out that was let in.
            with contextlib.suppress(OSError):
                print(f"another browser: {url}" if said else f"Open {url}\nIt works once. Ctrl-C ends.", flush=True)
            said = True
            if left:
                _open(left.pop(), url)

        yield announce


def _open(file: Path, url: str) -> None:
    """By a file that nobody else can read: the command lines of processes can be read by all."""
    file.write_text(f'<!doctype html><meta http-equiv="refresh" content="0;url={html.escape(url)}">')
    # Aside: a browser for terminals returns when it is left, and asks for the page until then.
    threading.Thread(target=_browse, args=(file.as_uri(),), daemon=True).start()


def _browse(address: str) -> None:
    if not webbrowser.open(address):
        warn(failed("no browser could be opened here"))
