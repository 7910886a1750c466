"""A fleet as plain processes on one machine."""

from rolloutfleet_operator.local.fleet import ChildFailed, Happening, LocalFleet
from rolloutfleet_operator.local.site import LocalFleetError, StateFolder
from rolloutfleet_operator.plan import Phase

__all__ = ["ChildFailed", "Happening", "LocalFleet", "LocalFleetError", "Phase", "StateFolder"]
