"""`rolloutfleet ack` and `rolloutfleet release`: end a lease, one way or the other."""

from typing import Annotated

import typer

from rolloutfleet.cli.api import NativeApi
from rolloutfleet.cli.options import AsJson, FleetOptions, takes_fleet_options
from rolloutfleet.cli.show import print_json

Lease = Annotated[str, typer.Argument(metavar="LEASE", help="The lease's id, as `export` showed it.")]
Trajectories = Annotated[
    list[str] | None,
    typer.Option("--trajectory", metavar="ID", help="Only this one; may be given again. All unless given."),
]


@takes_fleet_options
def ack(
    lease: Lease,
    trajectory: Trajectories = None,
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """Acknowledge an export: its trajectories are safe with you, and the fleet forgets them."""
    _end(options, lease, "ack", trajectory, as_json)


@takes_fleet_options
def release(
    lease: Lease,
    trajectory: Trajectories = None,
    *,
    options: FleetOptions,
    as_json: AsJson = False,
) -> None:
    """Give an export back: its trajectories can be exported again, with the same ids."""
    _end(options, lease, "release", trajectory, as_json)


def _end(options: FleetOptions, lease: str, how: str, trajectories: list[str] | None, as_json: bool) -> None:
    body = {"trajectory_ids": trajectories} if trajectories else {}
    with NativeApi(options.find()) as api:
        answer = api.post(f"/leases/{lease}/{how}", body)
    if as_json:
        print_json(answer)
    else:
        print(f"{lease}: {'acknowledged' if how == 'ack' else 'released'}")
