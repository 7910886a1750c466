"""A proxy under churn for as long as you like: its memory must not rise, and `/health` must answer all the while.

    python -m benchmarks.soak --minutes 30

Agents with short sessions (6 turns, 24 KB a request) and with long ones (45 turns, up to 2 MB a request) open sessions
and end them, half by deleting them and half by a reward that a trainer exports and acknowledges; now and then an
engine's reply carries 100 MB of expert routing. The engine takes 0.2 s, so nobody waits long and no time goes to
sleeping. Memory is sampled 20 times a second over the process tree. Judged is the line that fits what is left once
the warm-up is over: outliers don't bend it (Theil-Sen over the least of each of 200 stretches). The exit status is 1
where it rises by more than 2 % of the memory in the whole of the run, or where anything was lost.
"""

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from benchmarks.rigs import accounts, binaries, churn, load, machine, results
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_most, figure
from benchmarks.rigs.load import Answers, Generator, Workload
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import stop_as_by_ctrl_c
from benchmarks.rigs.stack import Proxy
from benchmarks.rigs.trainer import Trainer
from benchmarks.rigs.watching import Health, Resident, Slope, quantile, resident, thinned

MB: Final = 1e6
LATENCY: Final = 0.2
SHORT_AGENTS, LONG_AGENTS = 8, 2
PAYLOAD_EVERY: Final = 1500
CACHE_BYTES: Final = 16 << 20
"""So small that caches are full when the warm-up ends."""
WARMUP_SHARE: Final = 0.2
RISE: Final = 0.02
SAMPLES_KEPT: Final = 400


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    stop_as_by_ctrl_c()
    binaries.build()
    plan = Plan(pairs=1, seed=options.seed, window=options.minutes * 60)
    on = machine.describe()
    try:
        outcome = _soak(plan, minutes=options.minutes)
    except KeyboardInterrupt:
        say("the soak was stopped; there is no record of it")
        return 130
    command = shlex.join(["python", "-m", "benchmarks.soak", *(sys.argv[1:] if arguments is None else arguments)])
    results.write(options.results, name="soak", outcome=outcome, plan=plan, machine=on, command=command)
    for each in outcome.figures:
        print(each.line)
    wrong = [each for each in outcome.figures if each.check and not each.met]
    for each in wrong:
        say(f"WRONG: {each.name} is {each.median:g}, wanted {each.goal}")
    return 1 if wrong else 0


def _soak(plan: Plan, *, minutes: float) -> Outcome:
    with bench(plan, workload=Workload(), context=churn.CONTEXT) as on:
        on.stub.set_latency(LATENCY)
        on.stub.set_payload(churn.PAYLOAD, every=PAYLOAD_EVERY)
        with on.proxy_for_a_while("soak", settings={"cache_bytes": CACHE_BYTES}) as proxy:
            with Health(proxy.url) as probes, Resident(proxy.process.pid) as memory, Trainer(proxy):
                totals = _load(on, proxy, seconds=minutes * 60)
            stats = proxy.get_json("/stats")
            samples = [(at, float(size)) for at, size in memory.samples]
            line, figures = _judged(samples, probes)
            on.runs.append(
                {
                    "answers": [asdict(total) for total in totals],
                    "samples": [(round(at, 1), size) for at, size in thinned(samples, most=SAMPLES_KEPT)],
                    "fitted": [(round(at, 1), size) for at, size in line],
                    "rest": resident(proxy.process.pid),
                    **{name: stats[name] for name in ("caches", "trims", "collections", "most_in_flight_bytes")},
                }
            )
            return Outcome(
                figures=[*figures, *accounts.checks(proxy, totals, label="soak")],
                runs=on.runs,
                commands=on.commands,
            )


def _load(on: Bench, proxy: Proxy, *, seconds: float) -> list[Answers]:
    """Both kinds of agents, until the time is over."""
    with ExitStack() as exits:
        generators = []
        for name, workload, agents in (
            ("short", Workload.of_mean(on.texts), SHORT_AGENTS),
            ("long", churn.WORKLOAD, LONG_AGENTS),
        ):
            options: dict[str, Any] = {"in-flight": agents, "end": "mixed", "warmup": "1s", "duration": f"{seconds}s"}
            line = load.command(
                target=proxy.target, workload=workload, texts=on.texts, seed=next(on.seeds), options=options
            )
            on.commands[f"load_{name}"] = line
            generators.append(exits.enter_context(Generator(line)))
        for generator in generators:
            generator.expect("window_start")
        for generator in generators:
            generator.expect("window_end")
        return [Answers(**generator.expect("done")["total"]) for generator in generators]


def _judged(samples: list[tuple[float, float]], probes: Health) -> tuple[list[tuple[float, float]], list[Figure]]:
    """The points of the fit, and the figures."""
    began, ended = samples[0][0], samples[-1][0]
    warm = began + WARMUP_SHARE * (ended - began)
    line = thinned([sample for sample in samples if sample[0] >= warm])
    slope = Slope(line).value
    middle = quantile([size for _, size in line], 0.5)
    waits = probes.waits
    return line, [
        figure("soak_rise", "share", [slope * (line[-1][0] - line[0][0]) / middle], goal=at_most(RISE), check=True),
        figure("soak_slope_mb_per_hour", "MB/h", [slope * 3600 / MB]),
        figure("soak_rss_mb", "MB", [middle / MB]),
        figure("soak_rss_peak_mb", "MB", [max(size for _, size in samples) / MB]),
        figure("soak_health_p999_ms", "ms", [1e3 * quantile(waits, 0.999)]),
        figure("soak_health_max_ms", "ms", [1e3 * max(waits)], goal=at_most(1000), check=True),
        figure("soak_health_lost", "probes", [probes.lost], goal=at_most(0), check=True),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, metavar="M", help="how long (30)")
    parser.add_argument("--seed", type=int, default=1, help="seed of texts and times (1)")
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results", metavar="DIR")
    return parser


if __name__ == "__main__":
    sys.exit(main())
