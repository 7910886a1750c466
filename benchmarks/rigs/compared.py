"""The rigs that pair the proxy with the bare gateway: A B A B …, the same client bodies for both."""

from collections.abc import Callable
from dataclasses import replace

from benchmarks.rigs import accounts
from benchmarks.rigs.bench import REPLY_TOKENS, Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_least, at_most, figure
from benchmarks.rigs.load import Result, Shape
from benchmarks.rigs.plan import Plan

Pairs = list[tuple[Result, Result]]
"""Of each pair the gateway's run and the proxy's."""

ENGINE_SECONDS = 0.5
CAPTURE_IN_FLIGHT = 32
RATE = 200.0
STREAMED_TOKENS = 250
TOKEN_SECONDS = 0.01
"""Chunks come one by one, as from an engine: what comes together would be read together."""


def capture_vs_gateway(plan: Plan) -> Outcome:
    """CPU of the gateway for a request ÷ CPU of the proxy for a request, engine answering at once."""

    def figures(pairs: Pairs) -> list[Figure]:
        return [
            figure("capture_vs_gateway", "ratio", [_cpu_ratio(*pair) for pair in pairs], goal=at_least(0.8)),
            figure("gateway_cpu_per_request", "us", [alone.cpu_micros("gateway") for alone, _ in pairs]),
            figure("proxy_cpu_per_request", "us", [captured.cpu_micros("proxy") for _, captured in pairs]),
            figure("gateway_cpu_behind_proxy", "us", [captured.cpu_micros("gateway") for _, captured in pairs]),
            figure("proxy_rate_at_once", "1/s", [captured.rate for _, captured in pairs]),
        ]

    return _paired(plan, label="at_once", latency=0.0, shape=_closed(plan, CAPTURE_IN_FLIGHT), figures=figures)


def p99_added_ms(plan: Plan) -> Outcome:
    """Open loop: what the proxy adds to the 99th percentile."""

    def figures(pairs: Pairs) -> list[Figure]:
        added = [captured.latency("p99") - alone.latency("p99") for alone, captured in pairs]
        return [
            figure("p99_added_ms", "ms", added, goal=at_most(25)),
            figure("p50_added_ms", "ms", [b.latency("p50") - a.latency("p50") for a, b in pairs]),
            figure("gateway_p99", "ms", [alone.latency("p99") for alone, _ in pairs]),
            figure("proxy_p99", "ms", [captured.latency("p99") for _, captured in pairs]),
        ]

    shape = Shape(rate=RATE, warmup=plan.warmup, window=plan.window)
    return _paired(plan, label="open_loop", latency=ENGINE_SECONDS, shape=shape, figures=figures)


def stream_chunk_cpu_vs_gateway(plan: Plan) -> Outcome:
    """CPU of the gateway for a chunk of a stream ÷ CPU of the proxy for one."""

    def figures(pairs: Pairs) -> list[Figure]:
        ratios = [alone.chunk_micros("gateway") / captured.chunk_micros("proxy") for alone, captured in pairs]
        return [
            figure("stream_chunk_cpu_vs_gateway", "ratio", ratios, goal=at_least(0.6)),
            figure("gateway_cpu_per_chunk", "us", [alone.chunk_micros("gateway") for alone, _ in pairs]),
            figure("proxy_cpu_per_chunk", "us", [captured.chunk_micros("proxy") for _, captured in pairs]),
            figure("gateway_chunks", "1/s", [_chunk_rate(alone) for alone, _ in pairs]),
            figure("proxy_chunks", "1/s", [_chunk_rate(captured) for _, captured in pairs]),
            figure("proxy_chunks_joined", "ratio", [_joined(captured) for _, captured in pairs]),
        ]

    shape = replace(_closed(plan, CAPTURE_IN_FLIGHT), stream=True)
    return _paired(plan, label="streamed", latency=0.0, shape=shape, figures=figures, reply_tokens=STREAMED_TOKENS)


def _chunk_rate(result: Result) -> float:
    return result.engine_chunks / float(result.window["seconds"])


def _joined(result: Result) -> float:
    """How many of the engine's chunks came to the client as one: those that lie there together are read together."""
    return result.engine_chunks / max(int(result.window["chunks"]), 1)


def gateway_vs_itself(plan: Plan) -> Outcome:
    """The rig's own error: the gateway on both sides of the pairs of capture_vs_gateway."""
    with bench(plan) as on:
        shape = _closed(plan, CAPTURE_IN_FLIGHT)
        pairs = [(on.load(on.gateway.target, shape), on.load(on.gateway.target, shape))]
        ratios = [a.cpu_micros("gateway") / b.cpu_micros("gateway") for a, b in pairs]
        return _outcome(on, [figure("gateway_vs_itself", "ratio", ratios)])


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


def _cpu_ratio(alone: Result, captured: Result) -> float:
    return alone.cpu_micros("gateway") / captured.cpu_micros("proxy")


def _closed(plan: Plan, in_flight: int) -> Shape:
    return Shape(in_flight=in_flight, warmup=plan.warmup, window=plan.window)


Figures = Callable[[Pairs], list[Figure]]


def _paired(
    plan: Plan, *, label: str, latency: float, shape: Shape, figures: Figures, reply_tokens: int = REPLY_TOKENS
) -> Outcome:
    with bench(plan, reply_tokens=reply_tokens) as on:
        on.stub.set_latency(latency)
        on.stub.set_token_latency(TOKEN_SECONDS)
        proxy = on.proxy()
        pairs: Pairs = []
        for number in range(plan.pairs):
            say(f" pair {number + 1} of {plan.pairs}")
            alone = on.load(on.gateway.target, shape)
            pairs.append((alone, on.load(proxy.target, shape, watched={"proxy": proxy.process.pid})))
        kept = accounts.checks(proxy, [captured.total for _, captured in pairs], label=label)
        lost = sum(alone.errors for alone, _ in pairs)
        return _outcome(on, [*figures(pairs), *kept, figure(f"gateway_errors_{label}", "errors", [lost])])


def _outcome(on: Bench, figures: list[Figure]) -> Outcome:
    return Outcome(figures=figures, runs=on.runs, commands=on.commands)
