"""How an engine behaves, set once when it starts."""

from dataclasses import dataclass, field
from pathlib import Path

from rolloutfleet_engine.grammar import BACKENDS
from rolloutfleet_engine.model import model_path
from rolloutfleet_engine.script import LoopOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineOptions:
    """Settings of one simulated engine. Times are seconds, shares are 0 to 1."""

    model_path: Path = field(default_factory=model_path)
    served_model_name: str | None = None
    """The name it answers under; None: the model path, as SGLang has it."""

    seed: int = 0
    """With the prompt's ids and the request's sampling seed, it decides every token."""

    latency: float = 0.0
    """From a request's arrival to its first token."""

    token_latency: float = 0.0
    """From one token to the next."""

    jitter: float = 0.0
    """Share by which each request's latencies are varied, evenly to both sides."""

    noncanonical: float = 0.3
    """Share of the tokens written as two others with the same text."""

    loop: LoopOptions = field(default_factory=LoopOptions)
    """How an agent's loop goes."""

    stream_interval: int = 1
    """Tokens between two events of a stream."""

    max_context: int | None = None
    """Prompt and output together; None: what the model's configuration says."""

    weight_version: str = "default"
    log_size: int = 1000
    """Finished requests kept for `GET /log`."""

    health_timeout: float = 20.0
    """How long a health check waits for a paused engine before it says 503."""

    grammar_backend: str = BACKENDS[0]
    """What it refuses grammars like; one of `grammar.BACKENDS`."""

    api_key: str | None = None
    """What every call must bring but those for health; None: nothing."""
