"""The command line: which rigs, for how long, and where the records go."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from toolchain import go

from benchmarks import turn_growth
from benchmarks.plots.draw import draw
from benchmarks.rigs import (
    beside,
    binaries,
    churn,
    compared,
    dialects,
    health,
    machine,
    memory,
    operating,
    passing,
    r1,
    reclaiming,
    restarts,
    results,
    served,
    viewing,
)
from benchmarks.rigs.bench import say
from benchmarks.rigs.figures import Figure, Outcome, readable
from benchmarks.rigs.load import LoadFailed
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import StartFailed, stop_as_by_ctrl_c


@dataclass(frozen=True, slots=True)
class Rig:
    """What measures some figures together."""

    run: Callable[[Plan], Outcome]
    about: str
    goal: str = ""
    beside: tuple[str, ...] = ()
    """Figures of the same runs by which it may be named, too."""


TABLE: Final[dict[str, Rig]] = {
    "generator": Rig(compared.generator, "what the load generator itself can do, straight at the engine stub"),
    "gateway_vs_itself": Rig(compared.gateway_vs_itself, "the rig's own error: sglang-router 0.3.2 on both sides"),
    "capture_vs_gateway": Rig(
        compared.capture_vs_gateway,
        "CPU a request of sglang-router 0.3.2, and of smg (capture_vs_smg), ÷ CPU of the proxy",
        "at least 0.8",
        beside=("capture_vs_smg",),
    ),
    "capture_vs_peers": Rig(
        beside.capture_vs_peers, "CPU a request of a FastAPI+httpx proxy, and of LiteLLM's, ÷ CPU of the proxy"
    ),
    "passed_vs_direct": Rig(
        passing.passed_vs_direct, "CPU a request of both proxies, passed on ÷ straight to the owner", "at most 1.25"
    ),
    "served_at_400": Rig(
        served.served_at(400, goal=0.97), "0.5 s engine, 400 in flight: rate ÷ the gateway's own", "at least 0.97"
    ),
    "served_at_1600": Rig(served.served_at(1600, goal=0.8), "the same with 1,600 in flight", "at least 0.8"),
    "p99_added_ms": Rig(compared.p99_added_ms, "open loop of 200/s: p99 less the gateway's own", "at most 25 ms"),
    "stream_chunk_cpu_vs_gateway": Rig(
        compared.stream_chunk_cpu_vs_gateway,
        "the same for a chunk of a stream (stream_chunk_cpu_vs_smg)",
        "at least 0.6",
        beside=("stream_chunk_cpu_vs_smg",),
    ),
    "dialects": Rig(
        dialects.dialects,
        "recorded conversations of Claude Code and Codex: CPU a turn ÷ that of the same prompts by chat completions",
        "at most 1.15",
    ),
    "turn_growth": Rig(
        turn_growth.turn_growth, "CPU a byte, bytes stored, commit CPU: turn 200 ÷ an early one", "at most 1.2"
    ),
    "open_sessions": Rig(
        memory.open_sessions, "memory a session, bytes a token, and recovery with 10,000 open", "at most 5 MB"
    ),
    "rss_churn": Rig(
        churn.rss_churn, "4 sessions of 45 turns, bodies of MB: memory at most, after", "at most 275, 155 MB"
    ),
    "health": Rig(
        health.health, "/health through churn, 100 MB replies and 1,600 in flight: the slowest", "at most 250 ms"
    ),
    "viewing": Rig(
        viewing.viewing, "CPU a request, and /health, without ÷ with an open page and a `top` of 1 s", "at least 0.95"
    ),
    "restart_gap_ms": Rig(
        restarts.restart_gap, "the longest that /health waits in a restart under agents", "at most 2000 ms"
    ),
    "sessions_reclaimed": Rig(
        reclaiming.sessions_reclaimed, "10,000 sessions come and are reclaimed: memory and store after"
    ),
    "operator": Rig(
        operating.operator, "500 fleets on a bare API server: time to act, memory, idle writes", "1000 ms, 150 MB, 0"
    ),
}
"""`make bench`."""
REFERENCE: Final[dict[str, Rig]] = {
    "r1": Rig(r1.r1, "R1's table: 0.5 s engine, 1-8 servers, 50-1,600 in flight, beside a server in its shape"),
    "r2": Rig(churn.r2, "R2's churn and a larger one, each measure switched off, and bodies held"),
}
"""`make bench-rigs`."""
RIGS: Final = TABLE | REFERENCE
QUICK: Final = ("capture_vs_gateway", "dialects", "turn_growth", "health", "restart_gap_ms")
"""`make bench-quick`."""
RESULTS: Final = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rigs and give the exit status."""
    options = _parser().parse_args(arguments)
    stop_as_by_ctrl_c()
    names = _names(options)
    if unknown := [name for name in names if name not in RIGS]:
        _parser().error(f"no rig {', '.join(unknown)}; there are {', '.join(RIGS)}")
    try:
        binaries.build()
    except go.NoCompiler as error:
        _parser().error(str(error))
    command = shlex.join(["python", "-m", "benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    folder = options.results or (RESULTS / "quick" if options.quick else RESULTS)
    try:
        figures, failed = _run(names, _plan(options), folder=folder, command=command)
    except KeyboardInterrupt:
        say("benchmarks: stopped; the rigs that had ended have their records")
        return 130
    if options.quick and (left_out := [name for name in RIGS if name not in names]):
        say(f"left out: {', '.join(left_out)}")
    _show(figures)
    if failed:
        say(f"benchmarks: no figures from {', '.join(failed)}, as told above")
        return 2
    return 1 if any(figure.check and not figure.met for figure in figures) else 0


def _names(options: argparse.Namespace) -> list[str]:
    if options.rigs:
        named = {figure: name for name, rig in RIGS.items() for figure in rig.beside}
        return list(dict.fromkeys(named.get(name, name) for name in options.rigs))
    if options.quick:
        return list(QUICK)
    return list(REFERENCE if options.reference else TABLE)


def _run(names: Sequence[str], plan: Plan, *, folder: Path, command: str) -> tuple[list[Figure], list[str]]:
    """The figures, and the rigs that gave none: one that can't run must not cost those after it."""
    on = machine.describe()
    figures: list[Figure] = []
    failed: list[str] = []
    for name in names:
        began = time.monotonic()
        say(name)
        try:
            outcome = RIGS[name].run(plan)
        except (StartFailed, LoadFailed) as error:
            say(f"  {name} failed: {error}")
            failed.append(name)
            continue
        results.write(folder, name=name, outcome=outcome, plan=plan, machine=on, command=command)
        for note in outcome.notes:
            say(f"  note: {note}")
        say(f"  {name} took {time.monotonic() - began:.0f} s")
        figures.extend(outcome.figures)
    for title, rigs in (("bench", TABLE), ("bench-rigs", REFERENCE)):
        if set(names) == set(rigs) and not failed:
            results.write_latest(folder, title=title, figures=figures, machine=on, command=command)
    draw(folder)
    return figures, failed


def _show(figures: Sequence[Figure]) -> None:
    for figure in figures:
        if not figure.met:
            fault = "WRONG" if figure.check else "missed"
            say(f"{fault}: {figure.name} is {readable(figure.median)}, wanted {figure.goal}")
    for figure in figures:
        print(figure.line)


def _plan(options: argparse.Namespace) -> Plan:
    base = Plan.quick() if options.quick else Plan()
    given = {
        "model": options.model,
        "pairs": options.pairs,
        "warmup": options.warmup,
        "window": options.window,
        "sessions": None if options.sessions is None else tuple(options.sessions),
        "reclaimed_sessions": options.reclaimed,
        "fleets": options.fleets,
        "seed": options.seed,
    }
    return replace(base, **{name: value for name, value in given.items() if value is not None})


def _epilog() -> str:
    width = max(map(len, RIGS))
    lines = {
        name: f"  {name:{width}}  {rig.about}{f' (goal: {rig.goal})' if rig.goal else ''}" for name, rig in RIGS.items()
    }
    table, reference = ("\n".join(lines[name] for name in rigs) for rigs in (TABLE, REFERENCE))
    return f"""\
the table (make bench; what runs when nothing is named):
{table}

rigs of the references (make bench-rigs, --reference):
{reference}

Progress goes to stderr; the figures come last, on stdout, one a line: name value unit. The exit status is 1 where
a call failed, a turn was not committed or a prefix was not checked, and 2 where a rig could not run at all; a missed
goal of speed is only shown.
What each figure means: benchmarks/README.md.
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what a proxy costs, beside the bare SGLang gateway in the same run.",
        epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rigs", nargs="*", metavar="RIG", help="what to run (default: the table; with --quick, a few)")
    parser.add_argument("--quick", action="store_true", help="one pair, windows of 4 s: shows that it works, no more")
    parser.add_argument("--reference", action="store_true", help="the rigs of the references instead of the table")
    parser.add_argument("--pairs", type=_positive, metavar="N", help="pairs of runs, gateway and proxy in turn (3)")
    parser.add_argument("--warmup", type=float, metavar="S", help="seconds before each window (5)")
    parser.add_argument("--window", type=float, metavar="S", help="seconds that are counted (30)")
    parser.add_argument(
        "--sessions", type=_positive, nargs=2, metavar="N", help="the two sizes of open_sessions (2000 10000)"
    )
    parser.add_argument("--reclaimed", type=_positive, metavar="N", help="sessions that are reclaimed (10000)")
    parser.add_argument("--fleets", type=_positive, metavar="N", help="fleets of the operator (500)")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a model directory instead of the rigs' own")
    parser.add_argument("--seed", type=int, default=1, help="seed of texts and times (1)")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where the records go (benchmarks/results; with --quick, its folder quick, which is not committed)",
    )
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value
