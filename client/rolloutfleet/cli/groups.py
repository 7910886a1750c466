"""Commands of commands, like `rolloutfleet session`: without a further word they explain themselves."""

import typer


def group(help: str) -> typer.Typer:
    """A group that commands can be added to."""
    made = typer.Typer(help=help, rich_markup_mode="rich", pretty_exceptions_enable=False)
    made.callback(invoke_without_command=True)(help_unless_asked)
    return made


def help_unless_asked(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
