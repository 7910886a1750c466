"""A simulated SGLang engine: the real one's HTTP surface, made-up tokens, faults on request.

These names are imported when they are first used: the command says what is missing where the extra is not installed.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rolloutfleet_engine.faults import Fault as Fault
    from rolloutfleet_engine.model import model_path as model_path
    from rolloutfleet_engine.options import EngineOptions as EngineOptions
    from rolloutfleet_engine.server import create_engine as create_engine

_HOME = {"Fault": "faults", "model_path": "model", "EngineOptions": "options", "create_engine": "server"}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = found
    return found
