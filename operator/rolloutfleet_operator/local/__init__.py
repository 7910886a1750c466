"""A fleet as plain processes on one machine."""

from rolloutfleet_operator.local.engines import EnginesAwaited, EnginesMissing
from rolloutfleet_operator.local.fleet import ChildEvent, ChildFailed, LocalFleet
from rolloutfleet_operator.local.plan import Phase
from rolloutfleet_operator.local.site import LocalFleetError, StateFolder

__all__ = [
    "ChildEvent",
    "ChildFailed",
    "EnginesAwaited",
    "EnginesMissing",
    "LocalFleet",
    "LocalFleetError",
    "Phase",
    "StateFolder",
]
