"""`rolloutfleet ack` and `rolloutfleet release`: end a lease, one way or the other."""

from typing import Annotated

import typer

from rolloutfleet.cli.reach import Fleet
from rolloutfleet.cli.show import print_json
from rolloutfleet.cli.where import AdminKeyFile, AsJson, FleetFile, StateDir, Url, find_fleet

Lease = Annotated[str, typer.Argument(metavar="LEASE", help="The lease's id, as `export` showed it.")]
Trajectories = Annotated[
    list[str] | None,
    typer.Option("--trajectory", metavar="ID", help="Only this one; may be given again. All unless given."),
]


def ack(
    lease: Lease,
    trajectory: Trajectories = None,
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Acknowledge an export: its trajectories are safe with you, and the fleet forgets them."""
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)
    _end(Fleet(where), lease, "ack", trajectory, as_json)


def release(
    lease: Lease,
    trajectory: Trajectories = None,
    state_dir: StateDir = None,
    fleet_file: FleetFile = None,
    url: Url = None,
    admin_key_file: AdminKeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Give an export back: its trajectories can be exported again, with the same ids."""
    where = find_fleet(state_dir=state_dir, fleet_file=fleet_file, url=url, admin_key_file=admin_key_file)
    _end(Fleet(where), lease, "release", trajectory, as_json)


def _end(fleet: Fleet, lease: str, how: str, trajectories: list[str] | None, as_json: bool) -> None:
    body = {"trajectory_ids": trajectories} if trajectories else {}
    with fleet:
        answer = fleet.post(f"/leases/{lease}/{how}", body)
    if as_json:
        print_json(answer)
    else:
        print(f"{lease}: {'acknowledged' if how == 'ack' else 'released'}")
