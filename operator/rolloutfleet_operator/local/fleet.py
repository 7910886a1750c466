"""The executor of a local fleet: carries out what the plan says, with processes of this machine."""

import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from rolloutfleet.backoff import crashes_in_a_row
from rolloutfleet.spec import RolloutFleet
from rolloutfleet.tasks import end_tasks
from rolloutfleet_operator.local.children import GATEWAY, LocalSite, given_engines, port_names, proxy_name
from rolloutfleet_operator.local.engines import EngineLook, EnginesAwaited, EnginesMissing, bearer
from rolloutfleet_operator.local.models import find_model
from rolloutfleet_operator.local.plan import Child, GiveUp, Kind, ObservedChild, Phase, Start, Stop, Wait, plan
from rolloutfleet_operator.local.ports import Claims, choose_ports
from rolloutfleet_operator.local.processes import Guard, RunningProcess
from rolloutfleet_operator.local.site import FolderLock, LocalFleetError, StateFolder, read_key, write_whole

PROBE_INTERVAL = 0.1
PROBE_TIMEOUT = 2.0
SILENT_INTERVAL = 3.0
SILENT_PROBES = 12
"""So many in a row that nobody answered: what was ready is stuck, and is ended and started again. They are counted, so
that a machine that stood still meanwhile ends nothing."""
DISCOVERY_TIMEOUT = 5.0
ENGINES_INTERVAL = 1.0


class ChildFailed(LocalFleetError):
    """A child that never worked. `log_tail` is the end of what it wrote, `log` the whole."""

    def __init__(self, name: str, why: str, log_tail: str, log: Path) -> None:
        self.log_tail = log_tail
        self.log = log
        super().__init__(f"{name}: {why}")


@dataclass(frozen=True, slots=True)
class ChildEvent:
    """Something to tell a person: a child changed its phase, and why."""

    name: str
    phase: Phase
    text: str
    again: bool
    """True when it had been ready before."""


@dataclass(slots=True, kw_only=True)
class _RunningChild(ObservedChild):
    """A child, what became of it so far, and its process."""

    process: RunningProcess
    gone: asyncio.Event = field(default_factory=asyncio.Event)


class LocalFleet:
    """A fleet as processes on this machine: `await start()`, then `await wait()`, in the end `await stop()`.

    `report` is told what happens, and `report_wait`, each second, which engines are waited for; both in the event
    loop, so they must not block. Children that die are started again on their ports; all are stopped when this
    process goes, even by SIGKILL.
    """

    def __init__(
        self,
        fleet: RolloutFleet,
        *,
        state_dir: Path,
        beside: Path,
        report: Callable[[ChildEvent], None] = lambda event: None,
        report_wait: Callable[[EnginesAwaited], None] = lambda awaited: None,
        engine_key_file: Path | None = None,
        new_ports: bool = False,
        engines_within: float | None = None,
    ) -> None:
        """`beside` is the folder that relative paths in the resource start at: that of its file.

        `new_ports` replaces those of an earlier run that other programs hold by now. `engines_within` is how long, in
        seconds, a fleet that is ready otherwise waits for its engines; None is for ever. `engine_key_file` has the key
        that engines of others require; else the folder's own is used.
        """
        self.folder = StateFolder(state_dir)
        self._fleet = fleet
        self._beside = beside
        self._report = report
        self._report_wait = report_wait
        self._engine_key_file = (engine_key_file or self.folder.engine_key).absolute()
        self._new_ports = new_ports
        self._engines_within = engines_within
        self._lock = FolderLock(self.folder.lock)
        self._claims = Claims()
        self._running: dict[str, _RunningChild] = {}
        self._changed = asyncio.Event()
        self._up = asyncio.Event()
        self._hurry = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._written = ""
        self._stopping = False
        self._discovering: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start every child and return when all are ready, and the gateway uses all engines.

        Raises LocalFleetError, or its ChildFailed and EnginesMissing; what had been started is stopped then.
        """
        await self._prepare()
        self._keeper = asyncio.create_task(self._keep())
        up = asyncio.create_task(self._up.wait())
        try:
            await asyncio.wait([self._keeper, up], return_when=asyncio.FIRST_COMPLETED)
            if self._keeper.done():
                self._keeper.result()
        except BaseException:
            self.hurry()
            await self.stop()
            raise
        finally:
            up.cancel()

    async def _prepare(self) -> None:
        spec = self._fleet.spec
        if spec.engine is None:
            given_engines(spec)
        model_path = find_model(spec, beside=self._beside)
        # From here on files are written: what can't run here leaves nothing behind.
        self.folder.make()
        self._engine_key = read_key(self._engine_key_file)
        await self._lock.take()
        try:
            ports = choose_ports(
                self.folder.ports, port_names(spec), random.SystemRandom(), renew=self._new_ports, claims=self._claims
            )
            self._site = LocalSite(
                fleet=self._fleet.metadata.name,
                folder=self.folder,
                python=sys.executable,
                ports=ports,
                model_path=model_path,
                engine_key_file=self._engine_key_file,
            )
            self._guard = Guard(self._lock.fileno())
        except BaseException:
            self._claims.release()
            self._lock.release()
            raise

    def whereabouts(self) -> dict[str, Any]:
        """What fleet.json holds now."""
        spec, site, names = self._fleet.spec, self._site, map(proxy_name, range(self._fleet.spec.proxies.replicas))
        return {
            "name": self._fleet.metadata.name,
            "admin_key_file": str(self.folder.admin_key),
            "engine_key_file": str(self._engine_key_file),
            "gateway": {"url": site.url(GATEWAY)},
            "engines": [{"url": url} for url in site.engine_urls(spec)],
            "proxies": [
                {"ordinal": ordinal, "url": site.url(name), "pid": self._running[name].process.pid}
                for ordinal, name in enumerate(names)
                if name in self._running
            ],
        }

    async def wait(self) -> None:
        """Return when the fleet has ended; until `stop` that happens only by a failure, which is raised."""
        await self._keeper

    def hurry(self) -> None:
        """Kill what is being stopped, or will be, without waiting for its grace."""
        self._hurry.set()

    async def stop(self) -> None:
        """Stop everything: the proxies while gateway and engines still serve them, then the rest."""
        # Never cancelled: a child that is just being started would be left without anybody to stop it.
        self._stopping = True
        self._changed.set()
        await asyncio.gather(self._keeper, return_exceptions=True)
        for kinds in ({Kind.PROXY}, {Kind.GATEWAY, Kind.ENGINE}):
            those = [each for each in self._running.values() if each.child.kind in kinds]
            await asyncio.gather(*(self._stop_child(each, "stopping") for each in those))
        await end_tasks(self._tasks)
        self.folder.address_book.unlink(missing_ok=True)
        await asyncio.to_thread(self._guard.close)
        self._claims.release()
        self._lock.release()

    # The loop: look, plan, act.

    async def _keep(self) -> None:
        while not self._stopping:
            self._changed.clear()
            try:
                due = await self._pass()
                self._tell_where()
            except OSError as error:
                raise LocalFleetError(f"the state folder {self.folder.path} failed: {error}") from error
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else max(0.0, due - time.monotonic())):
                    await self._changed.wait()

    async def _pass(self) -> float | None:
        """Do all that is due; the time at which something may be due without anything happening."""
        wanted = self._site.children(self._fleet.spec)
        due: list[float] = []
        for action in plan(wanted, self._running, time.monotonic()):
            if self._stopping:
                break
            match action:
                case Start(child, why):
                    await self._start_child(child, why)
                case Stop(name, why):
                    self._spawn(self._stop_child(self._running[name], why))
                case GiveUp(name, why):
                    tail = self._running[name].process.log_tail()
                    raise ChildFailed(name, why, tail, self.folder.log(name))
                case Wait(_, until):
                    due.append(until)
        return min(due, default=None)

    async def _start_child(self, child: Child, why: str) -> None:
        before = self._running.get(child.name)
        for path, text in child.files:
            write_whole(path, text)
        process = await RunningProcess.start(child.argv, self.folder.log(child.name))
        self._guard.watch(process.pid)
        running = _RunningChild(
            child=child,
            phase=Phase.STARTING,
            since=time.monotonic(),
            ever_ready=before is not None and before.ever_ready,
            crashes=0 if before is None else before.crashes,
            process=process,
        )
        self._running[child.name] = running
        self._say(running, f"started again: {why}" if running.ever_ready else "starting")
        self._spawn(self._watch_end(running))
        self._spawn(self._watch_ready(running))

    async def _watch_end(self, running: _RunningChild) -> None:
        ending = await running.process.ended()
        self._guard.forget(running.process.pid)
        now = time.monotonic()
        if running.phase is Phase.STOPPING:
            running.crashes, ending = 0, "stopped"
        else:
            ready_for = now - running.since if running.phase is Phase.READY else 0.0
            running.crashes = crashes_in_a_row(before=running.crashes, healthy_for=ready_for)
        running.phase, running.since, running.ending = Phase.ENDED, now, ending
        running.gone.set()
        self._changed.set()
        self._say(running, ending)

    async def _watch_ready(self, running: _RunningChild) -> None:
        child = running.child
        async with _client(base_url=child.url) as client:
            while running.phase is Phase.STARTING:
                if await _answers(client, child.ready_path) and running.phase is Phase.STARTING:
                    running.phase, running.since, running.ever_ready = Phase.READY, time.monotonic(), True
                    self._changed.set()
                    self._say(running, "ready")
                    break
                await asyncio.sleep(PROBE_INTERVAL)
            if child.answers_path is not None:
                await self._watch_answers(running, client, child.answers_path)

    async def _watch_answers(self, running: _RunningChild, client: httpx.AsyncClient, path: str) -> None:
        client.headers.update(bearer(self._engine_key))
        silent = 0
        while running.phase is Phase.READY and silent < SILENT_PROBES:
            await asyncio.sleep(SILENT_INTERVAL)
            silent = 0 if await _answers(client, path) else silent + 1
        if running.phase is Phase.READY:
            self._say(running, f"has not answered for {SILENT_PROBES * (SILENT_INTERVAL + PROBE_TIMEOUT):.0f} s")
            running.process.kill()

    async def _stop_child(self, running: _RunningChild, why: str) -> None:
        if running.phase is Phase.ENDED:
            return
        running.phase, running.since = Phase.STOPPING, time.monotonic()
        self._say(running, why)
        running.process.tell_to_stop()
        waits = [asyncio.create_task(event.wait()) for event in (running.gone, self._hurry)]
        grace = running.child.stop_grace
        await asyncio.wait(waits, timeout=grace, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
        if not running.gone.is_set():
            running.process.kill()
            await running.gone.wait()

    def _tell_where(self) -> None:
        """Write fleet.json when it would change, from the first moment at which the fleet is up."""
        if not self._up.is_set() and not self._came_up():
            return
        text = json.dumps(self.whereabouts(), indent=1)
        if text != self._written:
            write_whole(self.folder.address_book, text)
            self._written = text
        self._up.set()

    def _came_up(self) -> bool:
        if self._discovering is None:
            if not all(self._is_ready(child.name) for child in self._site.children(self._fleet.spec)):
                return False
            self._discovering = self._spawn(self._discover_each_other())
            self._discovering.add_done_callback(lambda _: self._changed.set())
        if self._discovering.done():
            self._discovering.result()
        return self._discovering.done()

    async def _discover_each_other(self) -> None:
        """Let proxies find each other, for a moment, and the gateway its engines. Raises EnginesMissing.

        Before, each proxy would take all new sessions itself, and they all would stay with the first engine.
        """
        spec, key = self._fleet.spec, self.folder.admin_key.read_text().strip()
        if spec.suspend:
            return
        urls = [self._site.url(proxy_name(ordinal)) for ordinal in range(spec.proxies.replicas)]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISCOVERY_TIMEOUT):
                await asyncio.gather(*(_until(_knows_all, f"{url}/proxies", key) for url in urls))
        await self._wait_for_engines()

    async def _wait_for_engines(self) -> None:
        """Return when the gateway uses all of them. Raises EnginesMissing."""
        began, look = time.monotonic(), self._engine_look()
        async with _client() as http:
            while missing := await look.missing(http):
                waited = time.monotonic() - began
                if self._engines_within is not None and waited >= self._engines_within:
                    raise EnginesMissing(missing, self._engines_within)
                self._report_wait(EnginesAwaited(missing, waited))
                await asyncio.sleep(ENGINES_INTERVAL)

    def _engine_look(self) -> EngineLook:
        return EngineLook(
            gateway=self._site.url(GATEWAY),
            gateway_key=read_key(self.folder.gateway_key),
            engines=self._site.engine_urls(self._fleet.spec),
            engine_key=self._engine_key,
        )

    def _is_ready(self, name: str) -> bool:
        running = self._running.get(name)
        return running is not None and running.phase is Phase.READY

    def _say(self, running: _RunningChild, text: str) -> None:
        self._report(ChildEvent(running.child.name, running.phase, text, running.ever_ready))

    def _spawn(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _client(**more: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(trust_env=False, timeout=PROBE_TIMEOUT, **more)


async def _until(holds: Callable[[Any], bool], url: str, key: str) -> None:
    """Return when that holds of what is answered there."""
    async with _client(headers=bearer(key)) as client:
        while True:
            with contextlib.suppress(httpx.HTTPError, ValueError, LookupError, TypeError):
                if holds((await client.get(url)).json()):
                    return
            await asyncio.sleep(PROBE_INTERVAL)


def _knows_all(answer: Any) -> bool:
    """Whether that proxy sees every proxy ready."""
    return all(proxy["state"] == "ready" for proxy in answer["proxies"])


async def _answers(client: httpx.AsyncClient, path: str) -> bool:
    try:
        return (await client.get(path)).is_success
    except httpx.HTTPError:
        return False
