"""What capture costs beside a real SGLang: `python -m benchmarks.real_engine http://127.0.0.1:30000 --model DIR`.

Agents talk to an SGLang that runs already (with `--enable-metrics`), straight and through a gateway and a proxy, by
turns: the same client bodies for both, as chat completions. Nobody asks for log-probabilities, but a proxy itself does,
with every turn. `DIR` is the model that the engine serves: the proxy reads its tokenizer. All of it runs on one
machine, which needs cores to spare.
"""

import argparse
import itertools
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final
from urllib.error import URLError

from benchmarks.rigs import accounts, binaries, load, machine, processes, results, stack, texts
from benchmarks.rigs.bench import say
from benchmarks.rigs.figures import Figure, Outcome, figure
from benchmarks.rigs.load import LoadFailed, Result, Shape, Target, Workload
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import StartFailed

TOKENS_MADE: Final = re.compile(r"^sglang:generation_tokens_total\{[^}]*\} (\S+)$", re.MULTILINE)
WORKLOAD: Final = Workload(turns=6, shared=4_000, task=1_500, message=600, max_tokens=256)


class NoMetrics(Exception):
    """The engine does not say how many tokens it has made."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    binaries.build()
    plan = Plan(pairs=options.pairs, warmup=options.warmup, window=options.window, model=options.model)
    try:
        outcome = beside(options.engine.rstrip("/"), options.model, plan=plan, in_flight=options.in_flight)
    except (NoMetrics, LoadFailed, StartFailed, URLError) as error:
        print(f"real_engine: {error}", file=sys.stderr)
        return 1
    if options.results:
        command = " ".join(["python -m benchmarks.real_engine", *(sys.argv[1:] if arguments is None else arguments)])
        on = machine.describe()
        results.write(options.results, name="real_engine", outcome=outcome, plan=plan, machine=on, command=command)
    for each in outcome.figures:
        print(f"{each.line}  ({each.spread[0]:.4g} to {each.spread[1]:.4g})")
    return 1 if any(each.check and not each.met for each in outcome.figures) else 0


def beside(engine: str, model: Path, *, plan: Plan, in_flight: Sequence[int]) -> Outcome:
    """For each number of calls in flight: the engine alone and through a proxy, `plan.pairs` times."""
    tokens_made(engine)
    figures: list[Figure] = []
    runs: list[dict[str, object]] = []
    commands: dict[str, list[str]] = {}
    seeds = itertools.count(plan.seed)
    for agents in in_flight:
        shape = Shape(in_flight=agents, warmup=plan.warmup, window=plan.window)
        with standing(engine, model) as (files, gateway, proxy):
            commands |= {"gateway": gateway.process.command, "proxy": proxy.process.command}
            straight = Target(name="engine", url=engine, model=stack.MODEL)
            watched = {"gateway": gateway.process.pid, "proxy": proxy.process.pid}
            taken: dict[str, list[Result]] = {"engine": [], "proxy": []}
            for number in range(plan.pairs):
                say(f" {agents} in flight, round {number + 1} of {plan.pairs}")
                for target in (straight, proxy.target):
                    result = load.run(
                        target=target,
                        workload=WORKLOAD,
                        texts=files,
                        shape=shape,
                        seed=next(seeds),
                        watch={name: partial(processes.cpu_seconds, pid) for name, pid in watched.items()},
                        # Of a stream each token would be a chunk.
                        engine_chunks=partial(tokens_made, engine),
                    )
                    taken[target.name].append(result)
                    runs.append(result.record())
                    say(f"  {target.name}: {told(result)}")
            figures += compared(agents, taken["engine"], taken["proxy"])
            memory = proxy.memory()
            figures.append(figure(f"proxy_rss_at_{agents}", "MB", [memory.rss / 1e6]))
            figures += accounts.checks(proxy, [run.total for run in taken["proxy"]], label=f"at_{agents}")
    return Outcome(figures=figures, runs=runs, commands=commands)


@contextmanager
def standing(engine: str, model: Path) -> Iterator[tuple[texts.Texts, stack.Gateway, stack.Proxy]]:
    """What agents say, and a proxy with an empty store before a gateway before the engine."""
    with tempfile.TemporaryDirectory(prefix="rolloutfleet-bench-") as made:
        folder = Path(made)
        files = texts.write(folder, model=model, name=stack.MODEL)
        with (
            stack.gateway(folder, engine_url=engine) as gateway,
            stack.proxy(folder / "proxy", upstream=gateway, model=model) as proxy,
        ):
            gateway.wait_until_ready()
            yield files, gateway, proxy


def tokens_made(engine: str) -> int:
    """By all requests that have ended; nothing stands there before the first. Raises NoMetrics."""
    said = stack.get(f"{engine}/metrics").decode()
    if "sglang:" not in said:
        raise NoMetrics(f"{engine}/metrics does not count tokens: was it started with --enable-metrics?")
    return round(sum(map(float, TOKENS_MADE.findall(said))))


def token_rate(result: Result) -> float:
    return result.engine_chunks / float(result.window["seconds"])


def told(result: Result) -> str:
    spent = ", ".join(f"{name} {result.cpu_micros(name):.0f}" for name in result.cpu)
    return (
        f"{result.rate:.1f}/s, {token_rate(result):.0f} tokens/s, p50 {result.latency('p50'):.0f} ms, "
        f"p99 {result.latency('p99'):.0f} ms, errors {result.errors}; µs of CPU a request: {spent}"
    )


def compared(agents: int, alone: Sequence[Result], captured: Sequence[Result]) -> list[Figure]:
    def of(name: str, unit: str, value: Callable[[Result], float]) -> list[Figure]:
        return [
            figure(f"engine_{name}_at_{agents}", unit, [value(result) for result in alone]),
            figure(f"proxy_{name}_at_{agents}", unit, [value(result) for result in captured]),
        ]

    pairs = list(zip(alone, captured, strict=True))
    return [
        figure(f"served_at_{agents}", "ratio", [proxy.rate / engine.rate for engine, proxy in pairs]),
        figure(f"tokens_at_{agents}", "ratio", [token_rate(proxy) / token_rate(engine) for engine, proxy in pairs]),
        *of("rate", "1/s", lambda result: result.rate),
        *of("tokens", "1/s", token_rate),
        *of("p50", "ms", lambda result: result.latency("p50")),
        *of("p99", "ms", lambda result: result.latency("p99")),
        figure(f"proxy_cpu_per_request_at_{agents}", "us", [result.cpu_micros("proxy") for result in captured]),
        figure(f"smg_cpu_per_request_at_{agents}", "us", [result.cpu_micros("gateway") for result in captured]),
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.real_engine",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("engine", metavar="URL", help="where SGLang listens")
    parser.add_argument("--model", type=Path, required=True, metavar="DIR", help="the model that it serves")
    parser.add_argument("--in-flight", type=int, nargs="+", default=[64, 256], metavar="N", help="agents (64 256)")
    parser.add_argument("--pairs", type=int, default=2, metavar="N", help="pairs of windows (2)")
    parser.add_argument("--warmup", type=float, default=6.0, metavar="S", help="seconds before each window (6)")
    parser.add_argument("--window", type=float, default=15.0, metavar="S", help="seconds that are counted (15)")
    parser.add_argument("--results", type=Path, metavar="DIR", help="where a record goes (nowhere)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
