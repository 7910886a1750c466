"""Runs of the load generator, with CPU sampled at the two ends of its window."""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.rigs.binaries import LOADGEN
from benchmarks.rigs.processes import TICKS
from benchmarks.rigs.texts import Texts

MEAN_REQUEST_BYTES = 24 * 1024


@dataclass(frozen=True, slots=True)
class Workload:
    """What a session says. Lengths are bytes of JSON; `max_tokens` is what each request asks for."""

    turns: int = 6
    shared: int = 8_000
    task: int = 3_000
    message: int = 1_000
    max_tokens: int = 2048

    @classmethod
    def of_mean(cls, texts: Texts, *, turns: int = 6, shared: int = 8_000, message: int = 1_000) -> "Workload":
        """A task as long as makes a session's requests 24 KiB on average."""
        grows = texts.reply_bytes + message + _OVERHEAD
        task = MEAN_REQUEST_BYTES - shared - _OVERHEAD - grows * (turns - 1) // 2
        return cls(turns=turns, shared=shared, task=max(task, 0), message=message)


_OVERHEAD = 150
"""The fields and quotes around a reply and the message that follows it."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a load goes. With an admin key file it is a proxy, and sessions are opened there.

    `url` may be several, joined by commas: each session takes the next.
    """

    name: str
    url: str
    model: str
    admin_key_file: Path | None = None
    stateless: bool = False
    """It has no sessions, and takes the key with every call."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Closed loop (`in_flight`) or open (`rate` a second); `warmup`, `window`, `stagger` and `timeout` in seconds."""

    in_flight: int = 0
    rate: float = 0.0
    warmup: float = 10.0
    window: float = 30.0
    stagger: float = 0.5
    timeout: float = 120.0
    stream: bool = False


@dataclass(frozen=True, slots=True)
class Answers:
    """2xx answers of a whole run, warm-up and drain included: what a proxy must have committed."""

    sessions: int
    answers: int
    first_turns: int
    errors: dict[str, int]

    @property
    def failed(self) -> int:
        """All errors together."""
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True)
class Result:
    """One run. `window` is the generator's own report; `cpu` is CPU seconds of each watched tree within it."""

    target: str
    window: dict[str, Any]
    total: Answers
    cpu: dict[str, float]
    engine_chunks: int = 0
    """What the engine streamed within the window."""
    command: list[str] = field(default_factory=list)

    @property
    def rate(self) -> float:
        return float(self.window["rate"])

    def latency(self, quantile: str) -> float:
        """Milliseconds; `quantile` is p50, p90, p99, p999, max or mean."""
        return float(self.window["latency_ms"][quantile])

    def cpu_micros(self, watched: str) -> float:
        """CPU of a watched tree for each answer, in microseconds."""
        return self._cpu_seconds(watched) / max(int(self.window["answers"]), 1) * 1e6

    def chunk_micros(self, watched: str) -> float:
        """CPU of a watched tree for each chunk that the engine sent, in microseconds."""
        return self._cpu_seconds(watched) / max(self.engine_chunks, 1) * 1e6

    def _cpu_seconds(self, watched: str) -> float:
        """At least a tick: less is not measured, and one is divided by the other."""
        return max(self.cpu[watched], 1 / TICKS)

    @property
    def errors(self) -> int:
        return self.total.failed

    def record(self) -> dict[str, Any]:
        return asdict(self)


class LoadFailed(Exception):
    """The load generator ended without a result."""


def command(*, target: Target, workload: Workload, texts: Texts, seed: int, options: Mapping[str, object]) -> list[str]:
    """The generator's command line."""
    given = {
        "url": target.url,
        "model": target.model,
        "target": "gateway" if target.stateless or target.admin_key_file is None else "proxy",
        "admin-key-file": target.admin_key_file,
        "text": texts.prose,
        "turns": workload.turns,
        "shared-bytes": workload.shared,
        "task-bytes": workload.task,
        "message-bytes": workload.message,
        "max-tokens": workload.max_tokens,
        "seed": seed,
        **options,
    }
    return [str(LOADGEN), *(f"-{name}={value}" for name, value in given.items() if value is not None)]


def run(
    *,
    target: Target,
    workload: Workload,
    texts: Texts,
    shape: Shape,
    seed: int,
    watch: Mapping[str, Callable[[], float]],
    engine_chunks: Callable[[], int],
) -> Result:
    """Put the load on the target; `watch` names functions that tell CPU seconds used so far, `engine_chunks` tells what
    the engine has streamed so far.

    Raises LoadFailed.
    """
    options = {
        "in-flight": shape.in_flight,
        "rate": shape.rate,
        "warmup": f"{shape.warmup}s",
        "duration": f"{shape.window}s",
        "stagger": f"{shape.stagger}s",
        "timeout": f"{shape.timeout}s",
        "stream": str(shape.stream).lower(),
    }
    line = command(target=target, workload=workload, texts=texts, seed=seed, options=options)
    began: dict[str, float] = {}
    cpu: dict[str, float] = {}
    with Generator(line) as generator:
        generator.expect("window_start")
        began, chunks = {name: used() for name, used in watch.items()}, engine_chunks()
        generator.expect("window_end")
        cpu = {name: used() - began[name] for name, used in watch.items()}
        chunks = engine_chunks() - chunks
        done = generator.expect("done")
    return Result(
        target=target.name,
        window=done["window"],
        total=Answers(**done["total"]),
        cpu=cpu,
        engine_chunks=chunks,
        command=line,
    )


class Generator:
    """A running load generator, read event by event. It has one core at most: see the README."""

    def __init__(self, line: list[str]) -> None:
        self._process = subprocess.Popen(
            line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={"GOMAXPROCS": "1"}
        )

    def expect(self, name: str) -> dict[str, Any]:
        """The next event, which must be `name`. Raises LoadFailed."""
        assert self._process.stdout is not None
        text = self._process.stdout.readline()
        event: dict[str, Any] = json.loads(text) if text else {}
        if event.get("event") != name:
            raise LoadFailed(f"the load generator said {text!r} instead of {name}")
        return event

    def tell(self, text: str) -> None:
        """A command to a run of a fixed number of sessions."""
        assert self._process.stdin is not None
        self._process.stdin.write(text + "\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._process.kill()
        self._process.communicate()
