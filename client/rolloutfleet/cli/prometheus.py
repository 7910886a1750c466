"""`rolloutfleet prometheus`: what a Prometheus and a Grafana need to watch a fleet."""

import json
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

import typer

from rolloutfleet import monitoring
from rolloutfleet.cli.failures import failed
from rolloutfleet.cli.options import FleetOptions, read_interval, takes_options
from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.units import format_duration


@takes_options
def prometheus(
    options: FleetOptions,
    folder: Annotated[
        Path, typer.Argument(metavar="[DIR]", help="Where the files go; it is created if need be.")
    ] = Path("prometheus"),
    interval: Annotated[str, typer.Option(metavar="DURATION", help="How often the metrics are scraped.")] = "5s",
) -> None:
    """Write a Prometheus configuration for the fleet's proxies, alert rules, and a Grafana dashboard.

    Run it again after the number of proxies has changed: Prometheus follows by itself. An existing prometheus.yml is
    kept, the other files are replaced.
    """
    every = format_duration(read_interval(interval, least=0.1, most=60))
    where = options.find()
    with options.fleet() as fleet:
        proxies = {proxy.ordinal: proxy.url for proxy in fleet.proxies()}
    written = {monitoring.TARGETS: monitoring.targets(_name(where), proxies), **monitoring.generated()}
    config = folder / monitoring.CONFIG
    if not config.exists():
        written[monitoring.CONFIG] = monitoring.config(every)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise failed(f"{error.filename or folder} can't be written: {error.strerror}") from None
    typer.echo(f"Written to {folder}: {', '.join(written)}")
    typer.echo(f"  prometheus --config.file={config} --storage.tsdb.path={folder / 'data'}")
    typer.echo(f"  In Grafana: import {folder / monitoring.DASHBOARD}, with that Prometheus as the data source.")


def _name(where: Whereabouts) -> str:
    """What the fleet is called in labels: a local fleet by its name, any other by its address."""
    if where.book is not None:
        return str(json.loads(where.book.read_text(encoding="utf-8"))["name"])
    return urlsplit(where.urls[0]).hostname or where.urls[0]
