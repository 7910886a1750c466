"""A simulated SGLang engine: the real one's HTTP surface, made-up tokens, faults on request."""

from rolloutfleet_engine.model import model_path

__all__ = ["model_path"]
