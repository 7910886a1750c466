"""A simulated SGLang engine: the real one's HTTP surface, made-up tokens, faults on request."""

from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.model import model_path
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.server import create_engine

__all__ = ["EngineOptions", "Fault", "create_engine", "model_path"]
