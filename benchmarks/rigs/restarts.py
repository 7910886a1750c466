"""Restarts under agents with the stock `openai` client: how long nobody answers, and what the agents see of it.

Three kinds. *planned*: `POST /drain` with `then: restart`. *killed*: SIGKILL to the worker. *whole*: the proxy is told
to stop, and started again when it is gone, as a container is. The engine is the simulated one: the stub of the other
rigs does not stream.
"""

import asyncio
import contextlib
import http.client
import json
import os
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final
from urllib.parse import urlsplit

import openai
from tests.processes import free_port

from benchmarks.rigs import processes, stack
from benchmarks.rigs.background import Background
from benchmarks.rigs.bench import say
from benchmarks.rigs.figures import Figure, Outcome, at_most, exactly, figure
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.processes import Running
from benchmarks.rigs.stack import Proxy
from rolloutfleet_engine.model import model_path

AGENTS: Final = 48
TURNS: Final = 6
LATENCY: Final = 2.0
TOKEN_LATENCY: Final = 0.01
MAX_TOKENS: Final = 100
"""A generation takes some 3 s: longer than a planned restart keeps the address silent."""
QUIET: Final = 5.0
"""Seconds between two restarts."""
AGENTS_ONCE, LATENCY_ONCE, QUIET_ONCE = 12, 0.5, 0.5
"""Agents, the engine's latency, and seconds before and after, of a restart that is the only one: it is to show that the
rig works."""
WHOLE_RETRIES: Final = 8
TIMEOUT: Final = 180.0
PROBE_EVERY: Final = 0.02

Json = Any


@dataclass(slots=True)
class Seen:
    """What agents saw of one kind of restart. Times are seconds."""

    kind: str
    max_retries: int
    restarts: int = 0
    answers: int = 0
    errors: list[str] = field(default_factory=list)
    broken_streams: int = 0
    calls: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    lasted: list[float] = field(default_factory=list)
    """From asking for the restart until the next worker's boot."""


@dataclass(slots=True)
class Site:
    """A proxy and how to start it again."""

    proxy: Proxy
    command: list[str]
    log: Path

    def ask(self, method: str, path: str, content: Json = None) -> Json:
        request = urllib.request.Request(
            self.proxy.url + path,
            data=None if content is None else json.dumps(content).encode(),
            method=method,
            headers={
                "Authorization": f"Bearer {self.proxy.admin_key_file.read_text().strip()}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return json.loads(answer.read())


class Silence(Background):
    """Asks /health on fresh connections, one after the other, until it is left."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.longest = 0.0
        """Seconds from a question that nobody answered at once until one was answered."""
        self._where = urlsplit(url).netloc

    def run(self) -> None:
        unanswered: float | None = None
        while not self._left.wait(PROBE_EVERY):
            began = time.monotonic() if unanswered is None else unanswered
            if self._answered():
                unanswered = None
                self.longest = max(self.longest, time.monotonic() - began)
            else:
                unanswered = began

    def _answered(self) -> bool:
        connection = http.client.HTTPConnection(self._where, timeout=TIMEOUT)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def restart_gap(plan: Plan) -> Outcome:
    """The longest that a fresh connection waits for /health in a restart, and what agents see.

    With one restart only a planned one is made, and with fewer agents and shorter generations.
    """
    times = plan.restarts
    commands: dict[str, list[str]] = {}
    with contextlib.ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="rolloutfleet-bench-")))
        engine = exits.enter_context(_engine(folder, commands, latency=LATENCY if times > 1 else LATENCY_ONCE))
        gateway = exits.enter_context(stack.gateway(folder, engine_url=engine.url))
        proxy = exits.enter_context(stack.proxy(folder / "proxy", upstream=gateway, model=model_path()))
        gateway.wait_until_ready()
        commands |= {"gateway": gateway.process.command, "proxy": proxy.process.command}
        site = Site(proxy, proxy.process.command, folder / "proxy" / "again.log")
        kinds = [asyncio.run(_under_load(site, Seen("planned", openai.DEFAULT_MAX_RETRIES), _planned, times))]
        if times > 1:
            kinds.append(
                asyncio.run(_under_load(site, Seen("killed", openai.DEFAULT_MAX_RETRIES), _killed, max(3, times // 2)))
            )
            again = exits.enter_context(contextlib.ExitStack())
            whole = Seen("whole", WHOLE_RETRIES)
            kinds.append(asyncio.run(_under_load(site, whole, _whole(again), max(2, times // 3))))
        audit = site.ask("GET", "/audit")
    return Outcome(figures=_figures(kinds, audit), runs=[_record(seen) for seen in kinds], commands=commands)


def _figures(kinds: list[Seen], audit: Json) -> list[Figure]:
    planned, *others = kinds
    answers = sum(seen.answers for seen in kinds)
    broken = sum(seen.broken_streams for seen in kinds)
    return [
        figure("restart_gap_ms", "ms", [1000 * max(planned.gaps)], goal=at_most(2000)),
        figure("restart_gap_usual_ms", "ms", [1000 * gap for gap in planned.gaps]),
        figure("restart_seconds", "s", planned.lasted),
        figure("restart_longest_call_seconds", "s", [max(planned.calls)]),
        figure("restart_usual_call_seconds", "s", [median(planned.calls)]),
        figure("restart_errors", "errors", [len(planned.errors) + planned.broken_streams], goal=exactly(0), check=True),
        *(_unplanned(*others) if others else ()),
        # A turn whose stream broke off may be committed all the same: its finish was on its way.
        figure(
            "restart_answers_not_committed",
            "turns",
            [max(0, answers - audit["turns"]["created"])],
            goal=exactly(0),
            check=True,
        ),
        figure(
            "restart_turns_nobody_got",
            "turns",
            [max(0, audit["turns"]["created"] - answers - broken)],
        ),
        figure("restart_audit_unbalanced", "stores", [0 if audit["balanced"] else 1], goal=exactly(0), check=True),
    ]


def _unplanned(killed: Seen, whole: Seen) -> list[Figure]:
    return [
        figure("killed_worker_gap_ms", "ms", [1000 * gap for gap in killed.gaps]),
        figure("killed_worker_errors", "errors", [len(killed.errors)], goal=exactly(0), check=True),
        figure("killed_worker_broken_streams", "streams", [killed.broken_streams]),
        figure("whole_proxy_gap_ms", "ms", [1000 * gap for gap in whole.gaps]),
        figure("whole_proxy_errors", "errors", [len(whole.errors) + whole.broken_streams]),
    ]


def _record(seen: Seen) -> Json:
    calls = sorted(seen.calls)
    shown = {name: calls[int(share * (len(calls) - 1))] for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}
    return {**asdict(seen), "calls": {"count": len(calls), **shown}}


@contextlib.contextmanager
def _engine(folder: Path, commands: dict[str, list[str]], *, latency: float) -> Any:
    url = f"http://127.0.0.1:{(port := free_port())}"
    line = [sys.executable, "-m", "rolloutfleet_engine", "--port", str(port), "--served-model-name", stack.MODEL]
    line += ["--latency", str(latency), "--token-latency", str(TOKEN_LATENCY), "--jitter", "0.2"]
    with Running(line, log=folder / "engine.log") as process:
        process.wait_until(lambda: stack.answers(f"{url}/health"))
        commands["engine"] = line
        yield stack.Stub(url=url, process=process)


async def _under_load(site: Site, seen: Seen, restart: Callable[[Site, Seen, int], Any], times: int) -> Seen:
    """Agents at work while the proxy is restarted so many times."""
    ended = asyncio.Event()
    count, quiet = (AGENTS, QUIET) if times > 1 else (AGENTS_ONCE, QUIET_ONCE)
    agents = [asyncio.create_task(_agent(site, seen, number, ended)) for number in range(count)]
    await asyncio.sleep(quiet)
    for number in range(times):
        with Silence(site.proxy.url) as silence:
            began = time.monotonic()
            await asyncio.to_thread(restart, site, seen, number)
            seen.lasted.append(time.monotonic() - began)
            await asyncio.sleep(1.0)
        seen.gaps.append(silence.longest)
        seen.restarts += 1
        say(f"  {seen.kind}: silent for {1000 * seen.gaps[-1]:.0f} ms, {seen.lasted[-1]:.1f} s in all")
        await asyncio.sleep(quiet)
    ended.set()
    await asyncio.gather(*agents)
    say(f"  {seen.kind}: {seen.answers} answers, {len(seen.errors)} errors, {seen.broken_streams} streams broke off")
    return seen


async def _agent(site: Site, seen: Seen, number: int, ended: asyncio.Event) -> None:
    streamed = number % 2 == 1
    await asyncio.sleep(number / AGENTS * LATENCY)
    while not ended.is_set():
        session = await _session(site)
        client = openai.AsyncOpenAI(
            base_url=session["base_url"], api_key=session["api_key"], max_retries=seen.max_retries
        )
        messages: list[Json] = [{"role": "user", "content": f"Agent {number}: tell me of the weather in Paris."}]
        async with client:
            for _ in range(TURNS):
                if ended.is_set():
                    break
                began = time.monotonic()
                try:
                    message = await (_streamed if streamed else _whole_answer)(client, messages)
                except _Broken:
                    seen.broken_streams += 1
                    continue
                except openai.OpenAIError as error:
                    seen.errors.append(repr(error)[:200])
                    continue
                seen.calls.append(time.monotonic() - began)
                seen.answers += 1
                messages = [*messages, message, {"role": "user", "content": "And then?"}]


async def _session(site: Site) -> Json:
    """A session, however long it takes: starting one is the trainer's business, and it asks again."""
    while True:
        try:
            return await asyncio.to_thread(site.ask, "POST", "/sessions", {})
        except (urllib.error.URLError, OSError):
            await asyncio.sleep(0.5)


class _Broken(Exception):
    """A stream that had begun ended before its finish."""


async def _whole_answer(client: openai.AsyncOpenAI, messages: list[Json]) -> Json:
    answer = await client.chat.completions.create(model=stack.MODEL, messages=messages, max_tokens=MAX_TOKENS)
    return {"role": "assistant", "content": answer.choices[0].message.content or ""}


async def _streamed(client: openai.AsyncOpenAI, messages: list[Json]) -> Json:
    events = await client.chat.completions.create(
        model=stack.MODEL, messages=messages, max_tokens=MAX_TOKENS, stream=True
    )
    said, finished = "", False
    try:
        async for event in events:
            for choice in event.choices:
                said += choice.delta.content or ""
                finished = finished or choice.finish_reason is not None
    except Exception as error:  # whatever the SDK's HTTP client calls it
        raise _Broken from error
    if not finished:
        raise _Broken
    return {"role": "assistant", "content": said}


def _planned(site: Site, seen: Seen, number: int) -> None:
    name = f"{seen.kind}-{number}"
    site.ask("POST", "/drain", {"id": name, "reason": "measured", "then": "restart"})
    _until(lambda: site.ask("GET", "/stats")["boots"][-1]["id"] == name)


def _killed(site: Site, seen: Seen, number: int) -> None:
    pid = site.ask("GET", "/stats")["pid"]
    os.kill(pid, signal.SIGKILL)
    _until(lambda: site.ask("GET", "/stats")["pid"] != pid)


def _whole(exits: contextlib.ExitStack) -> Callable[[Site, Seen, int], None]:
    def restart(site: Site, seen: Seen, number: int) -> None:
        if number == 0:
            site.proxy.process.stop(patience=90.0)
        else:
            exits.pop_all().close()
        exits.enter_context(Running(site.command, log=site.log))
        _until(lambda: stack.answers(f"{site.proxy.url}/ready"))

    return restart


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError, OSError):
            if holds():
                return
        time.sleep(0.05)
    raise processes.StartFailed("the proxy did not come back")
