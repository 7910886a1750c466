"""Other proxies beside ours, by turns, under the load of capture_vs_gateway."""

from contextlib import ExitStack

from benchmarks.peers.running import PEERS
from benchmarks.rigs import accounts
from benchmarks.rigs.bench import bench, say
from benchmarks.rigs.compared import CAPTURE_IN_FLIGHT
from benchmarks.rigs.figures import Figure, Outcome, figure
from benchmarks.rigs.load import Result, Shape
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import StartFailed

TIMEOUT = 30.0
"""Seconds after which an agent gives up: a peer that is overrun must not hold the bench up."""


def capture_vs_peers(plan: Plan) -> Outcome:
    """CPU of each peer for a request ÷ CPU of the proxy for one. What can't be installed is left out, and named."""
    shape = Shape(in_flight=CAPTURE_IN_FLIGHT, warmup=plan.warmup, window=plan.window, timeout=TIMEOUT)
    with bench(plan) as on, ExitStack() as exits:
        proxy = on.proxy()
        peers, notes = {}, []
        for name, start in PEERS.items():
            try:
                peers[name] = exits.enter_context(start(on))
            except StartFailed as error:
                notes.append(f"capture_vs_{name} is left out: {error}")
        ours: list[Result] = []
        theirs: dict[str, list[Result]] = {name: [] for name in peers}
        for number in range(plan.pairs):
            say(f" round {number + 1} of {plan.pairs}")
            ours.append(on.load(proxy.target, shape, watched={"proxy": proxy.process.pid}))
            for name, peer in peers.items():
                theirs[name].append(on.load(peer.target, shape, watched={name: peer.process.pid}))
        figures = [one for name, results in theirs.items() for one in _figures(name, results, ours)]
        checks = accounts.checks(proxy, [result.total for result in ours], label="beside_peers")
        return Outcome(figures=[*figures, *checks], runs=on.runs, commands=on.commands, notes=notes)


def _figures(name: str, theirs: list[Result], ours: list[Result]) -> list[Figure]:
    answered = [(peer, own) for peer, own in zip(theirs, ours, strict=True) if peer.window["answers"]]
    errors = figure(f"{name}_errors", "errors", [sum(peer.errors for peer in theirs)])
    if not answered:
        return [errors]
    return [
        figure(f"capture_vs_{name}", "ratio", [p.cpu_micros(name) / o.cpu_micros("proxy") for p, o in answered]),
        figure(f"{name}_cpu_per_request", "us", [peer.cpu_micros(name) for peer, _ in answered]),
        figure(f"{name}_rate_at_once", "1/s", [peer.rate for peer, _ in answered]),
        errors,
    ]
