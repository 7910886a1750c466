"""What share of the gateway's own rate is served through proxies, when the engine takes its time.

One proxy with all agents, and two on the same machine, each with its own store and half of the agents: they share
nothing but the gateway. Two give twice the rate of one only where there are cores for both, for gateway and generators.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import mean

from benchmarks.rigs import accounts
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.compared import ENGINE_SECONDS
from benchmarks.rigs.figures import Figure, Outcome, at_least, exactly, figure
from benchmarks.rigs.load import Result, Shape
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy


def served_at(in_flight: int, *, goal: float) -> Callable[[Plan], Outcome]:
    """The rig for so many calls in flight: the gateway alone, one proxy and two, by turns."""

    def served(plan: Plan) -> Outcome:
        shape = Shape(in_flight=in_flight, warmup=plan.warmup, window=plan.window)
        half = Shape(in_flight=in_flight // 2, warmup=plan.warmup, window=plan.window)
        with bench(plan) as on:
            on.stub.set_latency(ENGINE_SECONDS)
            one, two = on.proxy("one"), [on.proxy("first"), on.proxy("second")]
            alone: list[Result] = []
            by_one: list[Result] = []
            by_two: list[list[Result]] = []
            for number in range(plan.pairs):
                say(f" round {number + 1} of {plan.pairs}")
                alone.append(on.load(on.gateway.target, shape))
                by_one.append(_load(on, one, shape))
                by_two.append(_at_once(on, two, half))
            figures = [
                *_figures(in_flight, goal, alone, by_one, by_two),
                *accounts.checks(one, [result.total for result in by_one], label=f"at_{in_flight}"),
            ]
            for index, name in enumerate(("first", "second")):
                totals = [together[index].total for together in by_two]
                figures += accounts.checks(two[index], totals, label=f"at_{in_flight}_{name}")
            return Outcome(figures=figures, runs=on.runs, commands=on.commands)

    return served


def _figures(
    in_flight: int, goal: float, alone: list[Result], by_one: list[Result], by_two: list[list[Result]]
) -> list[Figure]:
    rates = [sum(result.rate for result in together) for together in by_two]
    shares = [result.rate / gateway.rate for result, gateway in zip(by_one, alone, strict=True)]
    shares_two = [rate / gateway.rate for rate, gateway in zip(rates, alone, strict=True)]
    over_one = [rate / single.rate for rate, single in zip(rates, by_one, strict=True)]
    lost = sum(result.errors for result in alone)
    return [
        figure(f"served_at_{in_flight}", "ratio", shares, goal=at_least(goal)),
        figure(f"served_at_{in_flight}_two", "ratio", shares_two),
        figure(f"two_over_one_at_{in_flight}", "ratio", over_one),
        figure(f"gateway_rate_at_{in_flight}", "1/s", [result.rate for result in alone]),
        figure(f"proxy_rate_at_{in_flight}", "1/s", [result.rate for result in by_one]),
        figure(f"proxies_rate_at_{in_flight}_two", "1/s", rates),
        figure(f"proxy_p99_at_{in_flight}", "ms", [result.latency("p99") for result in by_one]),
        figure(f"proxy_cpu_per_request_at_{in_flight}", "us", [_cpu(result) for result in by_one]),
        figure(f"proxies_cpu_per_request_at_{in_flight}_two", "us", [mean(map(_cpu, both)) for both in by_two]),
        figure(f"gateway_errors_at_{in_flight}", "errors", [lost], goal=exactly(0)),
    ]


def _load(on: Bench, proxy: Proxy, shape: Shape) -> Result:
    return on.load(proxy.target, shape, watched={"proxy": proxy.process.pid})


def _at_once(on: Bench, proxies: list[Proxy], shape: Shape) -> list[Result]:
    """Each with a load generator of its own, all in the same window."""
    with ThreadPoolExecutor(len(proxies)) as generators:
        return list(generators.map(lambda proxy: _load(on, proxy, shape), proxies))


def _cpu(result: Result) -> float:
    return result.cpu_micros("proxy")
