"""Two proxies on one machine, each with its own store and half of the agents, against one with all of them.

One proxy is bound by its interpreter; `proxies.replicas` of a local fleet start more of them. They share nothing but
the gateway, so two give twice the rate of one where the machine has cores for both, for gateway and generators.
"""

from concurrent.futures import ThreadPoolExecutor
from statistics import mean

from benchmarks.rigs import accounts
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.compared import ENGINE_SECONDS
from benchmarks.rigs.figures import Outcome, figure
from benchmarks.rigs.load import Result, Shape
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy

IN_FLIGHT = 1600


def served_by_two(plan: Plan) -> Outcome:
    """The rate of two proxies together, over the gateway's own and over one proxy's."""
    with bench(plan) as on:
        on.stub.set_latency(ENGINE_SECONDS)
        one, two = on.proxy("one"), [on.proxy("first"), on.proxy("second")]
        alone: list[Result] = []
        by_one: list[Result] = []
        by_two: list[list[Result]] = []
        for number in range(plan.pairs):
            say(f" round {number + 1} of {plan.pairs}")
            alone.append(on.load(on.gateway.target, _shape(plan, IN_FLIGHT)))
            by_one.append(_load(on, one, plan, in_flight=IN_FLIGHT))
            by_two.append(_at_once(on, two, plan, in_flight=IN_FLIGHT // len(two)))
        rates = [sum(result.rate for result in together) for together in by_two]
        return Outcome(
            figures=[
                figure(
                    "served_at_1600_two", "ratio", [r / gateway.rate for r, gateway in zip(rates, alone, strict=True)]
                ),
                figure(
                    "two_over_one_at_1600", "ratio", [r / single.rate for r, single in zip(rates, by_one, strict=True)]
                ),
                figure("proxies_rate_at_1600_two", "1/s", rates),
                figure("proxy_rate_at_1600_one", "1/s", [result.rate for result in by_one]),
                figure("proxies_cpu_per_request_two", "us", [mean(map(_cpu, together)) for together in by_two]),
                figure("proxy_cpu_per_request_one", "us", [_cpu(result) for result in by_one]),
                *accounts.checks(one, [result.total for result in by_one], label="at_1600_one"),
                *accounts.checks(two[0], [together[0].total for together in by_two], label="at_1600_first"),
                *accounts.checks(two[1], [together[1].total for together in by_two], label="at_1600_second"),
            ],
            runs=on.runs,
            commands=on.commands,
        )


def _load(on: Bench, proxy: Proxy, plan: Plan, *, in_flight: int) -> Result:
    return on.load(proxy.target, _shape(plan, in_flight), watched={"proxy": proxy.process.pid})


def _at_once(on: Bench, proxies: list[Proxy], plan: Plan, *, in_flight: int) -> list[Result]:
    """Each with a load generator of its own, all in the same window."""
    with ThreadPoolExecutor(len(proxies)) as generators:
        return list(generators.map(lambda proxy: _load(on, proxy, plan, in_flight=in_flight), proxies))


def _cpu(result: Result) -> float:
    return result.cpu_micros("proxy")


def _shape(plan: Plan, in_flight: int) -> Shape:
    return Shape(in_flight=in_flight, warmup=plan.warmup, window=plan.window)
