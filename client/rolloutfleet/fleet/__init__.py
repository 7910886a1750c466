"""A trainer's side of a fleet: `Fleet`, or `AsyncFleet` for asyncio. docs/trainer.md shows how they are used."""

from rolloutfleet.fleet.async_fleet import AsyncFleet, AsyncGroup, AsyncSession
from rolloutfleet.fleet.base import Options
from rolloutfleet.fleet.exceptions import (
    BadArgument,
    Conflict,
    FleetClosed,
    FleetError,
    Gone,
    KeyRefused,
    LeaseLost,
    NotEverywhere,
    NotHeardYet,
    NotKnown,
    NotNow,
    Refused,
    StillPaused,
    TookTooLong,
    Unreachable,
)
from rolloutfleet.fleet.exporting import AsyncExport
from rolloutfleet.fleet.staleness_filter import Counts
from rolloutfleet.fleet.sync_fleet import Export, Fleet, Group, Session
from rolloutfleet.fleet.trajectories import Row, Trajectory, read_export
from rolloutfleet.fleet.weight_update import AsyncWeightUpdate
from rolloutfleet.fleet.whereabouts import Whereabouts

__all__ = [
    "AsyncExport",
    "AsyncFleet",
    "AsyncGroup",
    "AsyncSession",
    "AsyncWeightUpdate",
    "BadArgument",
    "Conflict",
    "Counts",
    "Export",
    "Fleet",
    "FleetClosed",
    "FleetError",
    "Gone",
    "Group",
    "KeyRefused",
    "LeaseLost",
    "NotEverywhere",
    "NotHeardYet",
    "NotKnown",
    "NotNow",
    "Options",
    "Refused",
    "Row",
    "Session",
    "StillPaused",
    "TookTooLong",
    "Trajectory",
    "Unreachable",
    "Whereabouts",
    "read_export",
]
