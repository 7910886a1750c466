"""The command line: which rigs, for how long, and where the records go."""

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from benchmarks import store_growth
from benchmarks.rigs import binaries, churn, compared, machine, memory, reclaiming, restarts, results, several
from benchmarks.rigs.bench import say
from benchmarks.rigs.figures import Figure, Outcome, readable
from benchmarks.rigs.load import LoadFailed
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import StartFailed
from toolchain import go

RIGS: Final[dict[str, Callable[[Plan], Outcome]]] = {
    "generator": compared.generator,
    "gateway_vs_itself": compared.gateway_vs_itself,
    "capture_vs_gateway": compared.capture_vs_gateway,
    "served_at_400": compared.served_at(400, goal=0.95),
    "served_at_1600": compared.served_at(1600, goal=0.6),
    "served_at_1600_two": several.served_by_two,
    "p99_added_ms": compared.p99_added_ms,
    "rss_10000_open_vs_500_mb": memory.rss_open_sessions,
    "rss_churn": churn.rss_churn,
    "health": churn.health,
    "sessions_reclaimed": reclaiming.sessions_reclaimed,
    "turn_store_growth": store_growth.turn_store_growth,
    "restart_gap_ms": restarts.restart_gap,
}
QUICK: Final = ("capture_vs_gateway", "turn_store_growth")
RESULTS: Final = Path(__file__).parent / "results"

EPILOG = """\
rigs:
  generator                 what the load generator itself can do, straight at the engine stub
  gateway_vs_itself         the rig's own error: the gateway on both sides
  capture_vs_gateway        CPU of the gateway a request ÷ CPU of the proxy a request      goal: at least 0.5
  served_at_400             0.5 s engine, 400 in flight: proxy's rate ÷ the gateway's own  goal: at least 0.95
  served_at_1600            the same with 1,600 in flight                                  goal: at least 0.6
  served_at_1600_two        the same with two proxies on this machine, against one
  p99_added_ms              open loop of 200/s: p99 less the gateway's own                 goal: at most 50 ms
  rss_10000_open_vs_500_mb  resident memory with 10,000 sessions open less that with 500   goal: at most 50 MB
  rss_churn                 4 sessions of 45 turns, bodies of MB: memory at most, after    goal: at most 275, 155 MB
  health                    /health ten times a second through churn and 100 MB replies    goal: at most 250 ms
  sessions_reclaimed        10,000 sessions come and are reclaimed: memory and store after, against before
  turn_store_growth         bytes stored and commit CPU of turn 200 ÷ those of turn 2      goal: at most 1.2
  restart_gap_ms            the longest that /health waits in a restart under agents       goal: at most 2000 ms

Progress goes to stderr; the figures come last, on stdout, one a line: name value unit. The exit status is 1 where
a call failed, a turn was not committed or a prefix was not checked; a missed goal of speed is only shown.
What each figure means: benchmarks/README.md.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the rigs and give the exit status."""
    options = _parser().parse_args(arguments)
    names = options.rigs or (list(QUICK) if options.quick else list(RIGS))
    if unknown := [name for name in names if name not in RIGS]:
        _parser().error(f"no rig {', '.join(unknown)}; there are {', '.join(RIGS)}")
    try:
        binaries.build()
    except go.NoCompiler as error:
        _parser().error(str(error))
    command = shlex.join(["python", "-m", "benchmarks", *(sys.argv[1:] if arguments is None else arguments)])
    try:
        figures = _run(names, _plan(options), folder=options.results, command=command)
    except (StartFailed, LoadFailed) as error:
        say(f"benchmarks: {error}")
        return 2
    if options.quick and (left_out := [name for name in RIGS if name not in names]):
        say(f"left out: {', '.join(left_out)}")
    _show(figures)
    return 1 if any(figure.check and not figure.met for figure in figures) else 0


def _run(names: Sequence[str], plan: Plan, *, folder: Path, command: str) -> list[Figure]:
    on = machine.describe()
    figures: list[Figure] = []
    for name in names:
        say(name)
        outcome = RIGS[name](plan)
        results.write(folder, name=name, outcome=outcome, plan=plan, machine=on, command=command)
        for note in outcome.notes:
            say(f"  note: {note}")
        figures.extend(outcome.figures)
    if set(names) == set(RIGS):
        results.write_latest(folder, figures=figures, machine=on, command=command)
    return figures


def _show(figures: Sequence[Figure]) -> None:
    for figure in figures:
        if not figure.met:
            fault = "WRONG" if figure.check else "missed"
            say(f"{fault}: {figure.name} is {readable(figure.median)}, wanted {figure.goal}")
    for figure in figures:
        print(figure.line)


def _plan(options: argparse.Namespace) -> Plan:
    base = Plan.quick() if options.quick else Plan()
    return Plan(
        model=options.model,
        pairs=options.pairs or base.pairs,
        warmup=base.warmup if options.warmup is None else options.warmup,
        window=options.window or base.window,
        sessions=base.sessions if options.sessions is None else tuple(options.sessions),
        growth_sessions=base.growth_sessions,
        churn_sessions=base.churn_sessions,
        reclaimed_sessions=options.reclaimed or base.reclaimed_sessions,
        seed=options.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Measure what a proxy costs, beside the bare SGLang gateway in the same run.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("rigs", nargs="*", metavar="RIG", help="what to run (default: all; with --quick, a few)")
    parser.add_argument("--quick", action="store_true", help="one pair, windows of 4 s: shows that it works, no more")
    parser.add_argument("--pairs", type=int, help="pairs of runs, gateway and proxy in turn (3)")
    parser.add_argument("--warmup", type=float, metavar="S", help="seconds before each window (10)")
    parser.add_argument("--window", type=float, metavar="S", help="seconds that are counted (30)")
    parser.add_argument(
        "--sessions", type=int, nargs=2, metavar="N", help="the two sizes of the memory rig (500 10000)"
    )
    parser.add_argument("--reclaimed", type=int, metavar="N", help="sessions that are reclaimed (10000)")
    parser.add_argument("--model", type=Path, metavar="DIR", help="a model directory instead of the rigs' own")
    parser.add_argument("--seed", type=int, default=1, help="seed of texts and times (1)")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, metavar="DIR", help="where the records go (benchmarks/results)"
    )
    return parser
