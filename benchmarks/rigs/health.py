"""Whether `/health` answers under the heaviest loads there are: bodies of megabytes with replies of 100 MB, and 1,600
calls in flight."""

from dataclasses import asdict
from typing import Final

from benchmarks.rigs import accounts, load
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.churn import AGENTS, CONTEXT, MB, PAYLOAD, WORKLOAD
from benchmarks.rigs.compared import ENGINE_SECONDS
from benchmarks.rigs.figures import Outcome, at_most, figure
from benchmarks.rigs.load import Answers, Generator, Workload
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy
from benchmarks.rigs.trainer import Trainer
from benchmarks.rigs.watching import Health, Resident, quantile

PAYLOAD_EVERY: Final = 40


def health(plan: Plan) -> Outcome:
    """`/health` ten times a second through both loads; the figure is the slowest of all answers."""
    seconds = plan.window * plan.pairs
    with bench(plan, workload=WORKLOAD, context=CONTEXT) as on, on.proxy_for_a_while("health") as proxy:
        on.stub.set_payload(PAYLOAD, every=PAYLOAD_EVERY)
        with Health(proxy.url) as churned, Trainer(proxy), Resident(proxy.process.pid) as memory:
            heavy = _run(on, proxy, "churn", on.workload, seconds=seconds, agents=2 * AGENTS)
        on.stub.set_payload(0, every=1)
        loads = [("churn", churned, heavy)]
        if plan.crowd:
            on.stub.set_latency(ENGINE_SECONDS)
            with Health(proxy.url) as crowded, Trainer(proxy):
                many = _run(on, proxy, "crowd", Workload.of_mean(on.texts), seconds=seconds, agents=plan.crowd)
            loads.append(("crowd", crowded, many))
        for name, probes, total in loads:
            on.runs.append({"load": name, "answers": asdict(total), "lost": probes.lost, "waits": probes.waits})
        slowest = {name: 1e3 * max(probes.waits) for name, probes, _ in loads}
        rarely = [1e3 * quantile(probes.waits, 0.999) for _, probes, _ in loads]
        return Outcome(
            figures=[
                figure("health_max_ms", "ms", [max(slowest.values())], goal=at_most(250)),
                figure("health_p999_ms", "ms", [max(rarely)]),
                *(figure(f"health_max_{name}_ms", "ms", [value]) for name, value in slowest.items()),
                figure("health_lost", "probes", [sum(probes.lost for _, probes, _ in loads)]),
                figure("rss_peak_health_mb", "MB", [memory.peak / MB]),
                *accounts.checks(proxy, [total for *_, total in loads], label="health"),
            ],
            runs=on.runs,
            commands=on.commands,
        )


def _run(on: Bench, proxy: Proxy, name: str, workload: Workload, *, seconds: float, agents: int) -> Answers:
    say(f"  {name}: {agents} agents for {seconds:.0f} s")
    options = {"in-flight": agents, "end": "mixed", "warmup": "1s", "duration": f"{seconds}s"}
    line = load.command(target=proxy.target, workload=workload, texts=on.texts, seed=next(on.seeds), options=options)
    on.commands[f"load_health_{name}"] = line
    with Generator(line) as generator:
        generator.expect("window_start")
        generator.expect("window_end")
        return Answers(**generator.expect("done")["total"])
