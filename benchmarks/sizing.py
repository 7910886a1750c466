"""How many proxies, how much disk and how many cores a number of sessions takes, by arithmetic from the records.

    python -m benchmarks.sizing                                        # the table of docs/sizing.md
    python -m benchmarks.sizing --sessions 200000 --generation 30 --pause 60 --turns 40

Nothing is guessed here: what was measured stands in `Measured`, what is assumed of the agents in `Agents`, and the rest
is multiplication. It says what one proxy, on the machine of the records, allows; nobody ran a million sessions.
"""

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Final

RESULTS: Final = Path(__file__).parent / "results"
OPEN_MEASURED: Final = 10_000
"""Sessions that one proxy had open when its memory was measured."""
IN_FLIGHT_MEASURED: Final = 1600
"""Calls in flight that one proxy served without an error."""
SHARE: Final = 0.5
"""Of a proxy's measured rate that is planned with: the rest is for exports, bursts, and restarts of its neighbours."""
ROUTINE: Final = (10_000, 1_000_000)
GENERATION, PAUSE, TURNS = 10.0, 10.0, 50


@dataclass(frozen=True, slots=True)
class Measured:
    """What the records say of one proxy."""

    turns_a_second: float
    proxy_cpu: float
    """Seconds a turn."""
    gateway_cpu: float
    """Of the gateway behind the proxy, seconds a turn."""
    store_bytes: float
    """A turn's, indices and write-ahead log included."""
    resident_mb: float
    """With OPEN_MEASURED sessions open."""
    request_bytes: float


@dataclass(frozen=True, slots=True)
class Agents:
    """What the sessions do; seconds."""

    sessions: int
    generation: float = GENERATION
    pause: float = PAUSE
    """Of tools, between two calls."""
    turns: int = TURNS
    """That a session has had when it is exported and its data goes."""

    @property
    def turns_a_second(self) -> float:
        return self.sessions / (self.generation + self.pause)

    @property
    def in_flight(self) -> float:
        return self.turns_a_second * self.generation


@dataclass(frozen=True, slots=True)
class Needs:
    """What that takes, all proxies together unless said."""

    by_rate: int
    by_calls: int
    by_sessions: int
    turns_a_second: float
    in_flight: float
    proxy_cores: float
    gateway_cores: float
    store_bytes: float
    stored_a_second: float
    received_a_second: float
    resident_mb: float

    @property
    def proxies(self) -> int:
        return max(self.by_rate, self.by_calls, self.by_sessions)


def needs(agents: Agents, measured: Measured) -> Needs:
    """Proxies by each of the three measures, and what all of them use."""
    by_rate = math.ceil(agents.turns_a_second / (SHARE * measured.turns_a_second))
    by_calls = math.ceil(agents.in_flight / IN_FLIGHT_MEASURED)
    by_sessions = math.ceil(agents.sessions / OPEN_MEASURED)
    return Needs(
        by_rate=by_rate,
        by_calls=by_calls,
        by_sessions=by_sessions,
        turns_a_second=agents.turns_a_second,
        in_flight=agents.in_flight,
        proxy_cores=agents.turns_a_second * measured.proxy_cpu,
        gateway_cores=agents.turns_a_second * measured.gateway_cpu,
        # Half of the turns of all sessions, on average, are there at a moment.
        store_bytes=agents.sessions * agents.turns / 2 * measured.store_bytes,
        stored_a_second=agents.turns_a_second * measured.store_bytes,
        received_a_second=agents.turns_a_second * measured.request_bytes,
        resident_mb=max(by_rate, by_calls, by_sessions) * measured.resident_mb,
    )


def read(folder: Path = RESULTS) -> Measured:
    """From the folder's records. Raises SystemExit where one is missing."""
    at_once = _record(folder, "capture_vs_gateway")
    memory = _record(folder, "open_sessions")
    captured = [run for run in at_once["runs"] if run["target"] == "proxy"]
    return Measured(
        turns_a_second=_median(_record(folder, "served_at_400"), "proxy_rate_at_400"),
        proxy_cpu=_median(at_once, "proxy_cpu_per_request") / 1e6,
        gateway_cpu=mean(run["cpu"]["gateway"] / run["window"]["answers"] for run in captured),
        store_bytes=_median(memory, "store_bytes_per_turn"),
        resident_mb=_median(memory, f"rss_{OPEN_MEASURED}_open_mb"),
        request_bytes=mean(run["window"]["request_bytes"] for run in captured),
    )


def _record(folder: Path, name: str) -> Any:
    file = folder / f"{name}.json"
    if not file.exists():
        raise SystemExit(f"no {name}.json in {folder}: python -m benchmarks {name}")
    return json.loads(file.read_text(encoding="utf-8"))


def _median(record: Any, name: str) -> float:
    return float(record["figures"][name]["median"])


ROWS: Final[tuple[tuple[str, Callable[[Needs], str]], ...]] = (
    ("turns a second", lambda n: f"{n.turns_a_second:,.0f}"),
    ("calls in flight", lambda n: f"{n.in_flight:,.0f}"),
    ("proxies by rate", lambda n: f"{n.by_rate:,}"),
    ("proxies by calls in flight", lambda n: f"{n.by_calls:,}"),
    ("proxies by open sessions", lambda n: f"{n.by_sessions:,}"),
    ("**proxies**", lambda n: f"**{n.proxies:,}**"),
    ("cores, all proxies", lambda n: f"{n.proxy_cores:,.1f}"),
    ("cores, all gateways", lambda n: f"{n.gateway_cores:,.1f}"),
    ("resident memory, all proxies", lambda n: f"{n.resident_mb / 1e3:,.1f} GB"),
    ("disk, all stores", lambda n: _bytes(n.store_bytes)),
    ("disk, each", lambda n: _bytes(n.store_bytes / n.proxies)),
    ("new in the store, each", lambda n: f"{_bytes(n.stored_a_second / n.proxies)}/s"),
    ("bodies from agents, each", lambda n: f"{_bytes(n.received_a_second / n.proxies)}/s"),
)


def table(cases: Sequence[Agents], measured: Measured) -> str:
    """The cases side by side, in Markdown."""
    found = [needs(agents, measured) for agents in cases]
    head = "| | " + " | ".join(f"{agents.sessions:,} sessions" for agents in cases) + " |"
    rows = [f"| {label} | " + " | ".join(told(each) for each in found) + " |" for label, told in ROWS]
    return "\n".join([head, "|---" * (len(cases) + 1) + "|", *rows])


def _bytes(value: float) -> str:
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if value >= size:
            return f"{value / size:,.1f} {unit}"
    return f"{value / 1e3:,.0f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.sizing", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sessions", type=int, nargs="+", default=ROUTINE, metavar="N", help="open at a time")
    parser.add_argument("--generation", type=float, default=GENERATION, metavar="S", help="of a call (10)")
    parser.add_argument("--pause", type=float, default=PAUSE, metavar="S", help="between two calls (10)")
    parser.add_argument("--turns", type=int, default=TURNS, help="of a session, until it is exported (50)")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="the records (benchmarks/results)")
    options = parser.parse_args()
    if min([*options.sessions, options.generation, options.turns]) <= 0 or options.pause < 0:
        parser.error("sessions, generation and turns are above 0, pause not below")
    cases = [Agents(n, options.generation, options.pause, options.turns) for n in options.sessions]
    print(table(cases, read(options.results)))


if __name__ == "__main__":
    main()
