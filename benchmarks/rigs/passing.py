"""CPU of a turn that reaches its session's owner through another proxy, beside one that reaches it directly, by turns.

Two fleets of two proxies stand before one gateway. The proxies of one give sessions their own address, those of the
other each other's.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from tests.processes import free_ports

from benchmarks.rigs import accounts
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.compared import CAPTURE_IN_FLIGHT
from benchmarks.rigs.figures import Figure, Outcome, at_most, figure
from benchmarks.rigs.load import Result, Shape, Target
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy


@dataclass(frozen=True, slots=True)
class Pair:
    """The two proxies of a fleet, and what they were asked."""

    name: str
    proxies: list[Proxy]
    runs: list[Result]

    @property
    def target(self) -> Target:
        """Both: a session is opened at either in turn."""
        return replace(self.proxies[0].target, name=self.name, url=",".join(proxy.url for proxy in self.proxies))

    @property
    def micros(self) -> list[float]:
        """CPU a request of both, in each run, in microseconds."""
        return [sum(run.cpu_micros(f"proxy_{ordinal}") for ordinal in range(2)) for run in self.runs]

    def load(self, on: Bench, shape: Shape) -> None:
        watched = {f"proxy_{ordinal}": proxy.process.pid for ordinal, proxy in enumerate(self.proxies)}
        self.runs.append(on.load(self.target, shape, watched=watched))


def passed_vs_direct(plan: Plan) -> Outcome:
    """CPU a request of both proxies where one passes it on ÷ where it comes to the owner."""
    shape = Shape(in_flight=CAPTURE_IN_FLIGHT, warmup=plan.warmup, window=plan.window)
    with bench(plan) as on, _fleet(on, "direct", crossed=False) as direct, _fleet(on, "passed", crossed=True) as passed:
        for number in range(plan.pairs):
            say(f" pair {number + 1} of {plan.pairs}")
            for pair in (direct, passed) if number % 2 == 0 else (passed, direct):
                pair.load(on, shape)
        figures = [
            figure(
                "passed_vs_direct",
                "ratio",
                [ours / theirs for ours, theirs in zip(passed.micros, direct.micros, strict=True)],
                goal=at_most(1.25),
            ),
            figure("passed_cpu_per_request", "us", passed.micros),
            figure("direct_cpu_per_request", "us", direct.micros),
            *_checks(direct),
            *_checks(passed),
        ]
        return Outcome(figures=figures, runs=on.runs, commands=on.commands)


@contextmanager
def _fleet(on: Bench, name: str, *, crossed: bool) -> Iterator[Pair]:
    with ExitStack() as exits:
        ports = free_ports(2)
        proxies = []
        for ordinal, port in enumerate(ports):
            given = ports[1 - ordinal] if crossed else port
            settings = {
                "port": port,
                "ordinal": ordinal,
                "replicas": 2,
                "peers": {"ports": ports},
                "public_url": f"http://127.0.0.1:{given}",
            }
            proxies.append(exits.enter_context(on.proxy_for_a_while(f"{name}-{ordinal}", settings=settings)))
        yield Pair(name, proxies, [])


def _checks(pair: Pair) -> list[Figure]:
    return accounts.checks_of(pair.proxies, [run.total for run in pair.runs], label=pair.name)
