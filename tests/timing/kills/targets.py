"""What can be killed: two proxies that stop where they are told to, two engines and a gateway that come back."""

import asyncio
import contextlib
import os
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.processes import NotServing, end_group, end_of, ends_with_this_process, wait_until_ready
from tests.timing.kills.faults import sitecustomize

from rolloutfleet_proxy.failpoints import ANY, HELD, VARIABLE

ENGINES = 2
FAULTS = (
    sitecustomize.ANSWER_BEFORE_COMMIT,
    sitecustomize.FORGOTTEN_ACK,
    sitecustomize.FORGOTTEN_START_KEY,
)
SECONDS_TO_SERVE = 120.0
PLAIN = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""For HTTP clients, as nothing here speaks TLS: to load the system's certificates for each takes 20 ms of CPU."""
LOOK = 0.01
"""Seconds between two looks at whether a proxy has come to a place."""
SOON = 0.05
"""Seconds between two looks at whether a proxy serves."""
SETTINGS: dict[str, Any] = {"sessions": {"cleanup_interval": 0.5}, "drain_timeout": 20.0}
ENGINE_OPTIONS = ("--latency", "0.3", "--token-latency", "0.005", "--jitter", "0.5", "--stream-interval", "5")


class NotComingBack(Exception):
    """A process that was killed can't be started again; the message ends with its log."""


@dataclass
class Target:
    """An engine or the gateway: started again on its port by the command that it was started with."""

    name: str
    url: str
    ready_path: str
    log: Path
    pid: int
    command: tuple[str, ...]
    environment: dict[str, str]
    started_here: "subprocess.Popen[bytes] | None" = None

    def kill(self) -> None:
        """SIGKILL, to it and its children; on return its port is free."""
        os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)

    def start_again(self) -> None:
        """The kernel ties its life to the thread that starts it, so this is for the main thread."""
        self.stop()
        with self.log.open("ab") as log:
            self.started_here = subprocess.Popen(
                [*ends_with_this_process(), *self.command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        self.pid = self.started_here.pid

    def wait_until_ready(self) -> None:
        assert self.started_here is not None
        url = self.url + self.ready_path
        wait_until_ready(self.started_here, url=url, log=self.log, seconds=SECONDS_TO_SERVE)

    def stop(self) -> None:
        if self.started_here is not None:
            end_group(self.started_here)
            self.started_here = None


@dataclass
class ProxyTarget:
    """A proxy that can be made to stop at a failpoint, for as long as it takes to kill it there."""

    proxy: ProxyProcess
    places: Path
    worker_deaths: int = 0
    """Of this life of its parent, which lets a worker that dies again wait for longer each time."""
    held: set[str] = field(default_factory=set)

    @property
    def ordinal(self) -> int:
        return self.proxy.ordinal

    def arm(self, place: str) -> None:
        """Have it stop where it comes to that place."""
        self.held.add(place)
        (self.places / place).touch()

    def let_go(self, place: str) -> None:
        """Let it go on from there."""
        self.held.discard(place)
        (self.places / place).unlink(missing_ok=True)
        (self.places / f"{place}{HELD}").unlink(missing_ok=True)

    def disarm(self) -> None:
        """Let it go on from anywhere."""
        for place in tuple(self.held):
            self.let_go(place)

    async def until_held(self, place: str, *, seconds: float) -> int | None:
        """The id of the process that has stopped there; None where none came there in that time."""
        ends = time.monotonic() + seconds
        said = self.places / f"{place}{HELD}"
        while time.monotonic() < ends:
            with contextlib.suppress(FileNotFoundError, ValueError):
                return int(said.read_text())
            await asyncio.sleep(LOOK)
        return None

    async def stats(self) -> dict[str, Any] | None:
        """Its own figures; None where it does not answer at once."""
        headers = {"authorization": f"Bearer {self.proxy.key}"}
        async with httpx.AsyncClient(base_url=self.proxy.url, headers=headers, timeout=2, verify=PLAIN) as client:
            with contextlib.suppress(httpx.TransportError):
                reply = await client.get("/stats")
                if reply.is_success:
                    shown: dict[str, Any] = reply.json()
                    return shown
        return None

    async def is_ready(self, *, seconds: float) -> bool:
        """Whether it says that it serves, within that time."""
        async with httpx.AsyncClient(base_url=self.proxy.url, timeout=seconds, verify=PLAIN) as client:
            with contextlib.suppress(httpx.TransportError):
                return (await client.get("/ready")).status_code == 200
        return False

    @property
    def parent_lives(self) -> bool:
        process = self.proxy.process
        return process is not None and process.poll() is None

    def launch(self) -> None:
        """Start it anew, without a wait."""
        self.worker_deaths = 0
        self.proxy.launch()

    async def until_ready(self) -> None:
        """Return once it serves. Raises NotServing where it ends before that."""
        ends = time.monotonic() + SECONDS_TO_SERVE
        async with httpx.AsyncClient(base_url=self.proxy.url, timeout=5, verify=PLAIN) as client:
            while time.monotonic() < ends and self.parent_lives:
                with contextlib.suppress(httpx.TransportError):
                    if (await client.get("/ready")).status_code == 200:
                        return
                await asyncio.sleep(SOON)
        raise NotServing(end_of(self.proxy.log))

    async def until_ended(self, seconds: float) -> None:
        """Return once its parent process is gone, as it should be soon."""
        process = self.proxy.process
        assert process is not None
        await asyncio.to_thread(process.wait, seconds)


@dataclass
class Targets:
    """All of them."""

    fleet: Fleet
    proxies: list[ProxyTarget]
    engines: list[Target]
    gateway: Target

    async def running(self, engine: Target) -> int:
        """How many calls an engine works on; 0 where it does not answer."""
        async with httpx.AsyncClient(timeout=2, verify=PLAIN) as client:
            with contextlib.suppress(httpx.TransportError):
                return int((await client.get(f"{engine.url}/counters")).json()["running"])
        return 0


@contextlib.contextmanager
def targets(folder: Path, *, proxies: int, bytecode: Path, fault: str | None = None) -> Iterator[Targets]:
    """A fleet of so many proxies in that folder until the block ends; with a fault planted in them, where one is named.

    Most of what a kill takes is the start that follows: Python's bytecode is kept, in that other folder, also where the
    environment is against it.
    """
    planted = {}
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(bytecode)}
    if fault is not None:
        faults = Path(sitecustomize.__file__).parent
        planted = {"PYTHONPATH": str(faults), "ROLLOUTFLEET_PLANTED_FAULT": fault}
    with contextlib.ExitStack() as stack:
        fleet = stack.enter_context(
            running_fleet(
                folder,
                proxies=proxies,
                engines=ENGINES,
                engine_options=ENGINE_OPTIONS,
                settings=SETTINGS,
                start_proxies=False,
            )
        )
        targeted = [ProxyTarget(proxy, folder / f"places-{proxy.ordinal}") for proxy in fleet.proxies]
        for each in targeted:
            each.places.mkdir()
            each.proxy.environment = {VARIABLE: f"{ANY}@{each.places}", **compiled, **planted}
            stack.callback(each.disarm)
            each.launch()
        fleet.wait_until_complete()
        engines = [
            Target(
                f"engine {number}",
                each.url,
                "/health",
                folder / f"engine-{number}.log",
                each.pid,
                each.command,
                environment=compiled,
            )
            for number, each in enumerate(fleet.engines)
        ]
        through = fleet.gateway
        gateway = Target("gateway", through.url, "/readiness", through.log, through.pid, through.command, {})
        for target in (*engines, gateway):
            stack.callback(target.stop)
        yield Targets(fleet, targeted, engines, gateway)
