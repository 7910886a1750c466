"""CPU a request of this checkout's proxy and of another's, side by side: `python -m benchmarks.against ../before`.

Both proxies stand before one gateway and engine stub, and get the load of `capture_vs_gateway` by turns, in windows
of a few seconds: on a machine that other work keeps busy, a request costs up to twice as much from one minute to the
next. `this_vs_other` is the ratio in neighbouring windows; `…_at_equal_speed` divides each side by what the gateway
behind took for a request in the same window, which is the same work for both. The other checkout needs a `.venv` of its
own (`make setup`).
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.rigs import accounts, binaries
from benchmarks.rigs.bench import bench, say
from benchmarks.rigs.compared import CAPTURE_IN_FLIGHT
from benchmarks.rigs.figures import Figure, figure
from benchmarks.rigs.load import Result, Shape
from benchmarks.rigs.plan import Plan


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    binaries.build()
    shape = Shape(in_flight=CAPTURE_IN_FLIGHT, warmup=options.warmup, window=options.window, stream=options.stream)
    figures = against(options.checkout, pairs=options.pairs, shape=shape)
    for each in figures:
        print(f"{each.line}  ({each.spread[0]:.4g} to {each.spread[1]:.4g})")
    return 1 if any(each.check and not each.met for each in figures) else 0


def against(checkout: Path, *, pairs: int, shape: Shape) -> list[Figure]:
    """Ratios are this one's ÷ the other's."""
    with bench(Plan(pairs=pairs)) as on:
        proxies = {"other": on.proxy("other", python=checkout / ".venv/bin/python"), "this": on.proxy("this")}
        runs: dict[str, list[Result]] = {"other": [], "this": []}
        for number in range(pairs):
            say(f" pair {number + 1} of {pairs}")
            for name in ("other", "this") if number % 2 == 0 else ("this", "other"):
                proxy = proxies[name]
                runs[name].append(on.load(proxy.target, shape, watched={"proxy": proxy.process.pid}))
        kept = [
            each
            for name, proxy in proxies.items()
            for each in accounts.checks(proxy, [run.total for run in runs[name]], label=name)
        ]
    this, other = ([run.cpu_micros("proxy") for run in runs[name]] for name in ("this", "other"))
    speeds = ([run.cpu_micros("gateway") for run in runs[name]] for name in ("this", "other"))
    ratios = [ours / theirs for ours, theirs in zip(this, other, strict=True)]
    slower = [ours / theirs for ours, theirs in zip(*speeds, strict=True)]
    return [
        figure("this_vs_other", "ratio", ratios),
        figure("this_vs_other_at_equal_speed", "ratio", [a / b for a, b in zip(ratios, slower, strict=True)]),
        figure("this_cpu_per_request", "us", this),
        figure("other_cpu_per_request", "us", other),
        *kept,
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.against", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkout", type=Path, help="the other one's folder")
    parser.add_argument("--pairs", type=int, default=20, metavar="N", help="pairs of windows (20)")
    parser.add_argument("--stream", action="store_true", help="answers are streamed, not whole")
    parser.add_argument("--warmup", type=float, default=1.0, metavar="S", help="seconds before each window (1)")
    parser.add_argument("--window", type=float, default=4.0, metavar="S", help="seconds that are counted (4)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
