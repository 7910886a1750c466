"""The rigs that set the proxy beside bare gateways, by turns: A B C A B C …, the same client bodies for all.

The proxy stands before `smg`, the gateway that fleets have. What CPU it takes is told beside two gateways: `smg` alone,
and sglang-router 0.3.2, which never changes any more, so that figures of different days can be compared.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from benchmarks.rigs import accounts
from benchmarks.rigs.bench import REPLY_TOKENS, Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_least, at_most, exactly, figure
from benchmarks.rigs.load import Result, Shape, Target
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Gateway, Proxy

Runs = Mapping[str, Sequence[Result]]
"""The runs of each target by turns: `yardstick` where the rig has it, `gateway`, `proxy`."""

ENGINE_SECONDS = 0.5
CAPTURE_IN_FLIGHT = 32
RATE = 200.0
STREAMED_TOKENS = 250
TOKEN_SECONDS = 0.01
"""Chunks come one by one, as from an engine: what comes together would be read together."""


def capture_vs_gateway(plan: Plan) -> Outcome:
    """CPU of the yardstick, and of smg, for a request ÷ CPU of the proxy for a request, engine answering at once."""

    def figures(runs: Runs) -> list[Figure]:
        gateway, smg, proxy = (
            [run.cpu_micros(name) for run in runs[name]] for name in ("yardstick", "gateway", "proxy")
        )
        return [
            figure("capture_vs_gateway", "ratio", _ratios(gateway, proxy), goal=at_least(0.8)),
            figure("capture_vs_smg", "ratio", _ratios(smg, proxy)),
            figure("smg_over_gateway", "ratio", _ratios(smg, gateway)),
            figure("gateway_cpu_per_request", "us", gateway),
            figure("smg_cpu_per_request", "us", smg),
            figure("proxy_cpu_per_request", "us", proxy),
            figure("smg_cpu_behind_proxy", "us", [run.cpu_micros("gateway") for run in runs["proxy"]]),
            figure("proxy_rate_at_once", "1/s", [run.rate for run in runs["proxy"]]),
        ]

    shape = _closed(plan, CAPTURE_IN_FLIGHT)
    return _by_turns(plan, label="at_once", latency=0.0, shape=shape, figures=figures, yardstick=True)


def p99_added_ms(plan: Plan) -> Outcome:
    """Open loop: what the proxy adds to the 99th percentile of the gateway that it stands before."""

    def figures(runs: Runs) -> list[Figure]:
        return [
            figure("p99_added_ms", "ms", _added(runs, "p99"), goal=at_most(25)),
            figure("p50_added_ms", "ms", _added(runs, "p50")),
            figure("gateway_p99", "ms", [run.latency("p99") for run in runs["gateway"]]),
            figure("proxy_p99", "ms", [run.latency("p99") for run in runs["proxy"]]),
        ]

    shape = Shape(rate=RATE, warmup=plan.warmup, window=plan.window)
    return _by_turns(plan, label="open_loop", latency=ENGINE_SECONDS, shape=shape, figures=figures)


def stream_chunk_cpu_vs_gateway(plan: Plan) -> Outcome:
    """CPU of the yardstick, and of smg, for a chunk of a stream ÷ CPU of the proxy for one."""

    def figures(runs: Runs) -> list[Figure]:
        gateway, smg, proxy = (
            [run.chunk_micros(name) for run in runs[name]] for name in ("yardstick", "gateway", "proxy")
        )
        return [
            figure("stream_chunk_cpu_vs_gateway", "ratio", _ratios(gateway, proxy), goal=at_least(0.6)),
            figure("stream_chunk_cpu_vs_smg", "ratio", _ratios(smg, proxy)),
            figure("gateway_cpu_per_chunk", "us", gateway),
            figure("smg_cpu_per_chunk", "us", smg),
            figure("proxy_cpu_per_chunk", "us", proxy),
            figure("gateway_chunks", "1/s", [_chunk_rate(run) for run in runs["yardstick"]]),
            figure("smg_chunks", "1/s", [_chunk_rate(run) for run in runs["gateway"]]),
            figure("proxy_chunks", "1/s", [_chunk_rate(run) for run in runs["proxy"]]),
            figure("proxy_chunks_joined", "ratio", [_joined(run) for run in runs["proxy"]]),
        ]

    return _by_turns(
        plan,
        label="streamed",
        latency=0.0,
        shape=replace(_closed(plan, CAPTURE_IN_FLIGHT), stream=True),
        figures=figures,
        yardstick=True,
        reply_tokens=STREAMED_TOKENS,
    )


def _ratios(above: Sequence[float], below: Sequence[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _added(runs: Runs, quantile: str) -> list[float]:
    pairs = zip(runs["gateway"], runs["proxy"], strict=True)
    return [captured.latency(quantile) - alone.latency(quantile) for alone, captured in pairs]


def _chunk_rate(result: Result) -> float:
    return result.engine_chunks / float(result.window["seconds"])


def _joined(result: Result) -> float:
    """How many of the engine's chunks came to the client as one: those that lie there together are read together."""
    return result.engine_chunks / max(int(result.window["chunks"]), 1)


def gateway_vs_itself(plan: Plan) -> Outcome:
    """The rig's own error: the yardstick on both sides of the pairs of capture_vs_gateway."""
    with bench(plan) as on:
        shape, yardstick = _closed(plan, CAPTURE_IN_FLIGHT), on.yardstick()
        first, second = (_run(on, yardstick.target, yardstick.process.pid, shape) for _ in range(2))
        ratio = first.cpu_micros("yardstick") / second.cpu_micros("yardstick")
        return _outcome(on, [figure("gateway_vs_itself", "ratio", [ratio])])


def generator(plan: Plan) -> Outcome:
    """What the load generator can do, straight at the stub: it must be far above what is measured with it."""
    with bench(plan) as on:
        direct = replace(on.gateway.target, name="stub", url=on.stub.url)
        at_once = on.load(direct, _closed(plan, CAPTURE_IN_FLIGHT))
        on.stub.set_latency(ENGINE_SECONDS)
        waiting = on.load(direct, _closed(plan, 1600))
        cpu = at_once.window["generator_cpu_seconds"] / at_once.window["answers"] * 1e6
        return _outcome(
            on,
            [
                figure("generator_max_rate", "1/s", [at_once.rate]),
                figure("generator_cpu_per_request", "us", [cpu]),
                figure("generator_rate_at_1600", "1/s", [waiting.rate]),
                figure("generator_p99_at_1600", "ms", [waiting.latency("p99")]),
            ],
        )


def _closed(plan: Plan, in_flight: int) -> Shape:
    return Shape(in_flight=in_flight, warmup=plan.warmup, window=plan.window)


Figures = Callable[[Runs], list[Figure]]


def _by_turns(
    plan: Plan,
    *,
    label: str,
    latency: float,
    shape: Shape,
    figures: Figures,
    yardstick: bool = False,
    reply_tokens: int = REPLY_TOKENS,
) -> Outcome:
    with bench(plan, reply_tokens=reply_tokens) as on:
        on.stub.set_latency(latency)
        on.stub.set_token_latency(TOKEN_SECONDS)
        proxy = on.proxy()
        measured: list[Gateway | Proxy] = [*([on.yardstick()] if yardstick else []), on.gateway, proxy]
        runs: dict[str, list[Result]] = {each.target.name: [] for each in measured}
        for number in range(plan.pairs):
            say(f" round {number + 1} of {plan.pairs}")
            for each in measured:
                runs[each.target.name].append(_run(on, each.target, each.process.pid, shape))
        kept = accounts.checks(proxy, [run.total for run in runs["proxy"]], label=label)
        lost = sum(run.errors for name, alone in runs.items() if name != "proxy" for run in alone)
        failed = figure(f"gateway_errors_{label}", "errors", [lost], goal=exactly(0), check=True)
        return _outcome(on, [*figures(runs), *kept, failed])


def _run(on: Bench, target: Target, pid: int, shape: Shape) -> Result:
    return on.load(target, shape, watched={target.name: pid})


def _outcome(on: Bench, figures: list[Figure]) -> Outcome:
    return Outcome(figures=figures, runs=on.runs, commands=on.commands)
