"""What it costs a proxy that somebody looks on: an open page of `rolloutfleet inspect`, and a `top` that draws every
second."""

import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from tests.browser.browser import ADDRESS, chromium

from benchmarks.rigs import accounts
from benchmarks.rigs.bench import Bench, bench
from benchmarks.rigs.compared import CAPTURE_IN_FLIGHT, ENGINE_SECONDS
from benchmarks.rigs.figures import Figure, Outcome, at_least, figure
from benchmarks.rigs.load import Result, Shape
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import Running
from benchmarks.rigs.stack import Proxy
from benchmarks.rigs.watching import Health

SHARE: Final = 1 / 3
"""Of a window of the other rigs: these are many."""
TERMINAL: Final = {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "48"}
"""What `top` draws in."""


@dataclass(slots=True)
class _Side:
    """What was seen in the windows without viewers, or in those with them."""

    at_once: list[Result] = field(default_factory=list)
    """32 calls in flight, the engine answers at once: what CPU is told by."""
    crowds: list[Result] = field(default_factory=list)
    """As many calls in flight as in the rig of `/health`."""
    slowest: list[float] = field(default_factory=list)
    """Milliseconds that `/health` took at the most under these."""
    checks: list[list[Figure]] = field(default_factory=list)
    """Of each proxy."""


def viewing(plan: Plan) -> Outcome:
    """CPU a request, and the slowest `/health` in a crowd, without and with viewers by turns, then with and without.

    Each time before a proxy of its own, whose sessions are those of these windows alone.
    """
    alone, viewed = _Side(), _Side()
    with bench(plan) as on:
        for pair in range(plan.viewing_pairs):
            for side in (alone, viewed) if pair % 2 == 0 else (viewed, alone):
                name = f"proxy-{'viewed' if side is viewed else 'alone'}-{pair}"
                with on.proxy_for_a_while(name) as proxy, ExitStack() as exits:
                    viewers = exits.enter_context(_viewers(on.folder, proxy)) if side is viewed else {}
                    _run(on, proxy, side, {"proxy": proxy.process.pid, **viewers})
        costs = [[run.cpu_micros("proxy") for run in side.at_once] for side in (alone, viewed)]
        return Outcome(
            figures=[
                figure("viewed_vs_alone", "ratio", _ratios(*costs), goal=at_least(0.95)),
                figure("viewed_health_vs_alone", "ratio", _ratios(alone.slowest, viewed.slowest), goal=at_least(0.95)),
                figure("viewed_cpu_per_request", "us", costs[1]),
                figure("alone_cpu_per_request", "us", costs[0]),
                figure("viewed_health_max_ms", "ms", viewed.slowest),
                figure("alone_health_max_ms", "ms", alone.slowest),
                *(
                    figure(f"{name}_cores", "cores", [run.cpu[name] / run.window["seconds"] for run in viewed.at_once])
                    for name in ("inspect", "top")
                ),
                *accounts.together(alone.checks + viewed.checks),
            ],
            runs=on.runs,
            commands=on.commands,
        )


def _run(on: Bench, proxy: Proxy, side: _Side, watched: dict[str, int]) -> None:
    window = on.plan.window * SHARE
    on.stub.set_latency(0)
    shape = Shape(in_flight=CAPTURE_IN_FLIGHT, warmup=on.plan.warmup, window=window)
    side.at_once.append(on.load(proxy.target, shape, watched=watched))
    on.stub.set_latency(ENGINE_SECONDS)
    with Health(proxy.url) as health:
        crowd = replace(shape, in_flight=on.plan.crowd or CAPTURE_IN_FLIGHT)
        side.crowds.append(on.load(proxy.target, crowd, watched=watched))
    side.slowest.append(1e3 * max(health.waits))
    totals = [runs[-1].total for runs in (side.at_once, side.crowds)]
    side.checks.append(accounts.checks(proxy, totals, label="viewing"))


def _ratios(alone: list[float], viewed: list[float]) -> list[float]:
    return [a / b for a, b in zip(alone, viewed, strict=True)]


@contextmanager
def _viewers(folder: Path, proxy: Proxy) -> Iterator[dict[str, int]]:
    """A page that shows sessions live, in a browser, and `top`; gives the processes of the project's own."""
    named = ["--url", proxy.url, "--admin-key-file", str(proxy.admin_key_file)]
    command = [sys.executable, "-m", "rolloutfleet"]
    page, drawn = folder / "inspect.log", folder / "top.log"
    page.unlink(missing_ok=True)
    top = ["script", "--quiet", "--flush", "--command", shlex.join([*command, "top", "--interval", "1s", *named])]
    with (
        Running([*command, "inspect", "--port", "0", *named], log=page) as inspect,
        Running([*top, "/dev/null"], log=drawn, environment=TERMINAL) as watching,
    ):
        inspect.wait_until(lambda: ADDRESS.search(page.read_text()) is not None)
        address = ADDRESS.findall(page.read_text())[0]
        with _browser(address):
            yield {"inspect": inspect.pid, "top": watching.pid}


@contextmanager
def _browser(address: str) -> Iterator[None]:
    """With a window that shows the sessions; the address lets it in, once."""
    with chromium() as browser:
        page = browser.new_page()
        page.goto(address)
        page.goto(address.partition("?")[0] + "sessions.html")
        yield
