"""`rolloutfleet top`: a fleet as it runs, as `htop` shows a machine."""

import asyncio
import sys
from typing import Annotated

import typer

from rolloutfleet.cli.failures import wrong
from rolloutfleet.cli.options import FleetOptions, read_interval, takes_options
from rolloutfleet.cli.show import console, print_json
from rolloutfleet.cli.top.screen import Display, shown
from rolloutfleet.cli.top.watching import watch
from rolloutfleet.fleet import AsyncFleet
from rolloutfleet.viewing.figures import ORDERS, FleetFigures, Sample, figures, take_sample

FASTEST, SLOWEST = 0.2, 60.0


@takes_options
def top(
    options: FleetOptions,
    interval: Annotated[str, typer.Option(metavar="DURATION", help="How often the figures are renewed.")] = "1s",
    sort: Annotated[
        str, typer.Option(metavar="COLUMN", help=f"What the proxies are sorted by: {', '.join(ORDERS)}.")
    ] = "proxy",
    once: Annotated[bool, typer.Option("--once", help="Show the figures of one interval, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The same as JSON.")] = False,
) -> None:
    """Watch a fleet: its proxies, their memory against the budget, sessions, calls, tokens a second, weights, leases,
    forks and refusals.

    Keys: [bold]q[/bold] quits, [bold]s[/bold] sorts by the next column, [bold]r[/bold] reverses the order. Where the
    output is not a terminal, it is shown once.
    """
    seconds = read_interval(interval, least=FASTEST, most=SLOWEST)
    if sort not in ORDERS:
        raise wrong(f"--sort: {sort!r} is not one of {', '.join(ORDERS)}")
    view = Display(sort=sort, interval=seconds)
    fleet = options.async_fleet()
    if once or as_json or not sys.stdout.isatty():
        found = asyncio.run(_once(fleet, seconds))
        if as_json:
            print_json(found.as_json())
        else:
            console().print(shown(found, view, width=console().width, asked=False))
        return
    ended_by = asyncio.run(watch(fleet, view))
    raise typer.Exit(0 if ended_by is None else 128 + ended_by)


async def _once(fleet: AsyncFleet, seconds: float) -> FleetFigures:
    """Two samples: rates need both."""
    async with fleet:
        first: Sample = await take_sample(fleet)
        await asyncio.sleep(seconds)
        return figures(first, await take_sample(fleet))
