"""`rolloutfleet --version`."""

from typing import Annotated

import typer

from rolloutfleet.installed import own_version


def show(asked: bool) -> None:
    """Print the release, and do nothing else."""
    if asked:
        typer.echo(f"rolloutfleet {own_version()}")
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Print the release, and end.", callback=show, is_eager=True)]
