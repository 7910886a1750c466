"""R1's rig: an engine of half a second, sessions of six turns, 1 to 8 servers, 50 to 1,600 calls in flight.

What its authors printed, for a machine that they do not name, stands in PRINTED. Beside it are measured, in one run on
one machine: the bare gateway, this project's proxy, and a server in R1's own shape (`peers/fastapi_httpx.py`). Every
session goes to the next server, as R1 takes one at random. The bound is what the engine's latency allows: the calls in
flight over half a second.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from benchmarks.peers.running import fastapi_httpx
from benchmarks.rigs import accounts
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.compared import ENGINE_SECONDS
from benchmarks.rigs.figures import Figure, Outcome, figure
from benchmarks.rigs.load import Answers, Result, Shape, Target
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy

LONGEST_WINDOW: Final = 25.0
"""Seconds: there are 54 points, and an hour for them."""
TIMEOUT: Final = 60.0
"""Seconds until an agent gives up: more than the longest that R1 printed."""

PRINTED: Final[dict[tuple[int, int], tuple[float, float | None]]] = {
    (1, 100): (66, 5.4),
    (1, 400): (66, 10),
    (1, 1600): (62, 31.99),
    (2, 100): (205, None),
    (4, 200): (407, None),
    (8, 100): (208, None),
    (8, 400): (795, 0.725),
    (8, 1600): (416, None),
}
"""(servers, in flight): requests a second, and the 99th percentile in seconds where it is told."""


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of the table. Rates a second, times in seconds, CPU in microseconds."""

    who: str
    servers: int
    in_flight: int
    rate: float
    bound: float
    p50: float
    p99: float
    errors: int
    cores: float
    """That the servers kept busy."""
    cpu_per_request: float
    printed_rate: float | None
    printed_p99: float | None


@dataclass(frozen=True, slots=True)
class Servers:
    """Some that share the sessions, and their process trees."""

    target: Target
    pids: list[int]
    proxies: list[Proxy]
    """Where they are this project's."""


def r1(plan: Plan) -> Outcome:
    """The whole table: the gateway alone, then for each number of servers ours and those in R1's shape."""
    shape = Shape(warmup=plan.warmup, window=min(plan.window, LONGEST_WINDOW), timeout=TIMEOUT)
    with bench(plan) as on:
        on.stub.set_latency(ENGINE_SECONDS)
        alone = Servers(on.gateway.target, [on.gateway.process.pid], [])
        points = [_point(on.load(alone.target, _with(shape, n)), "gateway", alone, n) for n in plan.r1_in_flight]
        checks: list[Figure] = []
        for servers in plan.r1_servers:
            say(f" {servers} of ours")
            with _ours(on, servers) as ours:
                found, totals = _row(on, "proxy", ours, shape, plan.r1_in_flight)
                points += found
                checks += accounts.checks_of(ours.proxies, totals, label=f"r1_{servers}")
            say(f" {servers} in R1's shape")
            with _in_r1s_shape(on, servers) as theirs:
                points += _row(on, "shape", theirs, shape, plan.r1_in_flight)[0]
        runs = [asdict(point) for point in points]
        return Outcome(figures=[*_figures(points), *checks], runs=[{"points": runs}, *on.runs], commands=on.commands)


def _row(
    on: Bench, who: str, servers: Servers, shape: Shape, levels: Sequence[int]
) -> tuple[list[Point], list[Answers]]:
    points, totals = [], []
    watched = {f"{who}_{number}": pid for number, pid in enumerate(servers.pids)}
    for in_flight in levels:
        result = on.load(servers.target, _with(shape, in_flight), watched=watched)
        totals.append(result.total)
        points.append(_point(result, who, servers, in_flight))
    return points, totals


def _with(shape: Shape, in_flight: int) -> Shape:
    return replace(shape, in_flight=in_flight)


def _point(result: Result, who: str, servers: Servers, in_flight: int) -> Point:
    names = ["gateway"] if who == "gateway" else [f"{who}_{number}" for number in range(len(servers.pids))]
    spent = sum(result.cpu[name] for name in names)
    printed = PRINTED.get((len(servers.pids), in_flight), (None, None)) if who != "gateway" else (None, None)
    return Point(
        who=who,
        servers=len(servers.pids),
        in_flight=in_flight,
        rate=result.rate,
        bound=in_flight / ENGINE_SECONDS,
        p50=result.latency("p50") / 1e3,
        p99=result.latency("p99") / 1e3,
        errors=result.errors,
        cores=spent / float(result.window["seconds"]),
        cpu_per_request=1e6 * spent / max(int(result.window["answers"]), 1),
        printed_rate=printed[0],
        printed_p99=printed[1],
    )


@contextmanager
def _ours(on: Bench, count: int) -> Iterator[Servers]:
    with ExitStack() as exits:
        proxies = [exits.enter_context(on.proxy_for_a_while(f"r1_{count}_{number}")) for number in range(count)]
        yield _servers([proxy.target for proxy in proxies], [proxy.process.pid for proxy in proxies], proxies)


@contextmanager
def _in_r1s_shape(on: Bench, count: int) -> Iterator[Servers]:
    with ExitStack() as exits:
        peers = [exits.enter_context(fastapi_httpx(on, f"shape_{count}_{number}")) for number in range(count)]
        yield _servers([peer.target for peer in peers], [peer.process.pid for peer in peers], [])


def _servers(targets: list[Target], pids: list[int], proxies: list[Proxy]) -> Servers:
    """The keys of all are the same, or of no account."""
    return Servers(replace(targets[0], url=",".join(target.url for target in targets)), pids, proxies)


def _figures(points: list[Point]) -> list[Figure]:
    figures: list[Figure] = []
    for who in ("proxy", "shape"):
        for servers in sorted({point.servers for point in points if point.who == who}):
            row = [point for point in points if (point.who, point.servers) == (who, servers)]
            peak = max(row, key=lambda point: point.rate)
            most = row[-1]
            figures += [
                figure(f"r1_{who}_{servers}_peak_rate", "1/s", [peak.rate]),
                figure(f"r1_{who}_{servers}_peak_in_flight", "calls", [peak.in_flight]),
                figure(f"r1_{who}_{servers}_peak_cores", "cores", [peak.cores]),
                figure(f"r1_{who}_{servers}_peak_cpu_per_request", "us", [peak.cpu_per_request]),
                figure(f"r1_{who}_{servers}_rate_at_{most.in_flight}", "1/s", [most.rate]),
                figure(f"r1_{who}_{servers}_p99_at_{most.in_flight}", "s", [most.p99]),
                figure(f"r1_{who}_{servers}_errors", "errors", [sum(point.errors for point in row)]),
            ]
    alone = [point for point in points if point.who == "gateway"]
    figures.append(figure(f"r1_gateway_rate_at_{alone[-1].in_flight}", "1/s", [alone[-1].rate]))
    return figures


def table(points: Sequence[dict[str, Any]]) -> str:
    """The record's points as a table of Markdown: what R1 printed, ours, its shape and the bound, side by side."""
    cells = {(point["who"], point["servers"], point["in_flight"]): point for point in points}
    lines = [
        "| servers | in flight | bound, 1/s | gateway alone, 1/s | printed: 1/s, p99 "
        "| its shape here: 1/s, p99, cores, µs | ours: 1/s, p99, cores, µs |",
        "|---|---|---|---|---|---|---|",
    ]
    for (who, servers, in_flight), ours in cells.items():
        if who != "proxy":
            continue
        gateway, theirs = cells["gateway", 1, in_flight], cells["shape", servers, in_flight]
        lines.append(
            f"| {servers} | {in_flight:,} | {ours['bound']:,.0f} | {gateway['rate']:,.0f} | {_printed(ours)} "
            f"| {_seen(theirs)} | {_seen(ours)} |"
        )
    return "\n".join(lines)


def _printed(point: dict[str, Any]) -> str:
    if point["printed_rate"] is None:
        return "-"
    p99 = point["printed_p99"]
    return f"{point['printed_rate']:,.0f}" + ("" if p99 is None else f", {p99:.1f} s")


def _seen(point: dict[str, Any]) -> str:
    failed = f", {point['errors']} errors" if point["errors"] else ""
    if not point["rate"]:
        return f"0{failed}"
    return f"{point['rate']:,.0f}, {point['p99']:.1f} s, {point['cores']:.2f}, {point['cpu_per_request']:,.0f}{failed}"
