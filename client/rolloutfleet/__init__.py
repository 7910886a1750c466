"""What a trainer imports and a user runs: the resource, the native API's types, the command line.

    from rolloutfleet import Fleet, StalenessManager

The names of this table are imported when they are first used: `import rolloutfleet` alone loads nothing.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rolloutfleet.fleet import AsyncFleet as AsyncFleet
    from rolloutfleet.fleet import Command as Command
    from rolloutfleet.fleet import Fleet as Fleet
    from rolloutfleet.fleet import FleetError as FleetError
    from rolloutfleet.fleet import Trajectory as Trajectory
    from rolloutfleet.fleet import Whereabouts as Whereabouts
    from rolloutfleet.remote_tensors import RemoteTensor as RemoteTensor
    from rolloutfleet.remote_tensors import RemoteTensors as RemoteTensors
    from rolloutfleet.scoring import score as score
    from rolloutfleet.staleness import StalenessManager as StalenessManager

_NAMES = {
    "rolloutfleet.fleet": ("AsyncFleet", "Command", "Fleet", "FleetError", "Trajectory", "Whereabouts"),
    "rolloutfleet.remote_tensors": ("RemoteTensor", "RemoteTensors"),
    "rolloutfleet.scoring": ("score",),
    "rolloutfleet.staleness": ("StalenessManager",),
}
_HOME = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
