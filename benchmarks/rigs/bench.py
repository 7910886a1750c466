"""What every rig stands on: a folder, texts, the stub, the gateway and, where asked, a proxy."""

import itertools
import secrets
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.rigs import load, processes, stack, texts
from benchmarks.rigs.load import Result, Shape, Target, Workload
from benchmarks.rigs.model import write_model
from benchmarks.rigs.plan import Plan
from rolloutfleet_engine.make_model import CONTEXT_LENGTH

REPLY_TOKENS: Final = 1000
"""Of a reply, ±20 %."""


@dataclass(slots=True)
class Bench:
    """Running processes, and the loads put on them. `runs` grows with each load."""

    plan: Plan
    folder: Path
    model: Path
    texts: texts.Texts
    workload: Workload
    stub: stack.Stub
    gateway: stack.Gateway
    """Proxies and peers stand before it."""
    exits: ExitStack
    runs: list[dict[str, Any]]
    commands: dict[str, list[str]]
    seeds: Iterator[int]
    admin_key: str
    """Of all its proxies: one load may go to several."""

    def proxy(
        self, name: str = "proxy", *, cache_bytes: int | None = None, python: str | Path = sys.executable
    ) -> stack.Proxy:
        """Start a proxy on an empty store; it ends with the bench."""
        return self.exits.enter_context(self.proxy_for_a_while(name, cache_bytes=cache_bytes, python=python))

    @contextmanager
    def proxy_for_a_while(
        self,
        name: str,
        *,
        cache_bytes: int | None = None,
        settings: Mapping[str, Any] | None = None,
        holding: bool = False,
        python: str | Path = sys.executable,
    ) -> Iterator[stack.Proxy]:
        """`settings` go over the usual ones; `holding` runs the proxy that keeps every request (`rigs.holding`), and
        `python` is another checkout's, if the proxy is to be."""
        given = {**(settings or {}), **({} if cache_bytes is None else {"cache_bytes": cache_bytes})}
        module = "benchmarks.rigs.holding" if holding else "rolloutfleet_proxy"
        folder = self.folder / name
        with stack.proxy(
            folder,
            upstream=self.gateway,
            model=self.model,
            settings=given,
            module=module,
            admin_key=self.admin_key,
            python=python,
        ) as proxy:
            self.commands[name] = proxy.process.command
            self.gateway.wait_until_ready()
            yield proxy

    def yardstick(self) -> stack.Gateway:
        """Start sglang-router 0.3.2 before the same engine; it ends with the bench."""
        gateway = self.exits.enter_context(stack.gateway(self.folder, engine_url=self.stub.url, name="yardstick"))
        self.commands["yardstick"] = gateway.process.command
        gateway.wait_until_ready()
        return gateway

    def load(self, target: Target, shape: Shape, *, watched: dict[str, int] | None = None) -> Result:
        """Put one load on a target. CPU of gateway and stub, and of `watched` process trees, is sampled."""
        self.gateway.wait_until_ready()
        pids = {"gateway": self.gateway.process.pid, "stub": self.stub.process.pid} | (watched or {})
        result = load.run(
            target=target,
            workload=self.workload,
            texts=self.texts,
            shape=shape,
            # Another seed for each run: sessions say other things than those that a proxy knows already.
            seed=next(self.seeds),
            watch={name: partial(processes.cpu_seconds, pid) for name, pid in pids.items()},
            engine_chunks=lambda: int(self.stub.counts()["chunks"]),
        )
        self.runs.append(result.record())
        spent = ", ".join(f"{name} {result.cpu_micros(name):.0f}" for name in pids)
        opening = result.window["opening_ms"]["p50"]
        say(
            f"  {target.name}: {result.rate:.0f}/s, p50 {result.latency('p50'):.0f} ms, "
            f"p99 {result.latency('p99'):.0f} ms, opening a session {opening:.0f} ms, errors {result.errors}; "
            f"µs of CPU a request: {spent}"
        )
        return result


@contextmanager
def bench(
    plan: Plan,
    *,
    reply_tokens: int = REPLY_TOKENS,
    workload: Workload | None = None,
    context: int = CONTEXT_LENGTH,
    said: Sequence[str] = (),
) -> Iterator[Bench]:
    """Stub and gateway, in a folder that goes away; the gateway may still be starting.

    Without a workload, requests are 24 KiB on average. `said` are the engine's replies, instead of prose.
    """
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="rolloutfleet-bench-")))
        model = plan.model or write_model(folder / "model", text=texts.prose(), context=context)
        files = texts.write(folder, model=model, name=stack.MODEL, tokens=reply_tokens, said=said)
        engine = exits.enter_context(stack.stub(folder, texts=files, model=model))
        before = exits.enter_context(stack.gateway(folder, engine_url=engine.url))
        yield Bench(
            plan=plan,
            folder=folder,
            model=model,
            texts=files,
            workload=workload or Workload.of_mean(files),
            stub=engine,
            gateway=before,
            exits=exits,
            runs=[],
            commands={"stub": engine.process.command, "gateway": before.process.command},
            seeds=itertools.count(plan.seed),
            admin_key=secrets.token_urlsafe(24),
        )


def say(text: str) -> None:
    """Progress, apart from the figures."""
    print(text, file=sys.stderr, flush=True)
