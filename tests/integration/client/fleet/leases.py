"""Leases that end by themselves, and what is left to export."""

from tests.integration.client.fleet.agents import talked
from tests.waiting import until

from rolloutfleet.fleet import Fleet, Trajectory


def ended_group(fleet: Fleet, size: int) -> str:
    with fleet.start_group(size) as group:
        talked(group)
    return group.group_id


def taken(fleet: Fleet, group_id: str) -> list[Trajectory]:
    """Trajectories of the group that nobody holds; they are acknowledged."""
    with fleet.export(group_id=group_id) as export:
        return list(export)


def until_a_lease_lapses(fleet: Fleet, *, seconds: float) -> None:
    """Return once a lease of that length, which begins now and is not renewed, is over: so is any older one."""
    group_id = ended_group(fleet, 1)
    assert fleet.export_file(group_id=group_id, lease_seconds=seconds).lease_id is not None
    until(lambda: taken(fleet, group_id))
