"""A fleet for tests: simulated engines, the real gateway, and proxies, each a process of its own."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx
import openai
import psutil
from tests import logs
from tests.gateways import Gateway, gateway_command
from tests.processes import (
    Server,
    end_group,
    end_of,
    ends_with_this_process,
    free_port,
    free_ports,
    serving,
    status,
    wait_until_ready,
)
from tests.waiting import PATIENCE, START, until

from rolloutfleet_engine.model import model_path
from rolloutfleet_operator import commands
from rolloutfleet_proxy.http.headers import PLACED
from rolloutfleet_proxy.store.reserve import FILE

MODEL = "simulated"
Json = Any


class Closable(Protocol):
    def close(self) -> None: ...


_PATIENT: dict[str, Any] = {"max_retries": 0, "timeout": PATIENCE}


def wait_until_gone(processes: Sequence[psutil.Process]) -> None:
    until(lambda: not any(is_alive(each) for each in processes))


def is_alive(process: psutil.Process) -> bool:
    """Whether it still runs. A zombie does not, but keeps its files and connections open until its threads are gone."""
    try:
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


@dataclass
class ProxyProcess:
    """One proxy, which can be killed and started again on its port and store. `process` is the parent process."""

    ordinal: int
    port: int
    folder: Path
    settings: dict[str, Json]
    environment: dict[str, str] = field(default_factory=dict)
    process: "subprocess.Popen[bytes] | None" = None
    boots: int = 0
    clients: "list[Closable]" = field(default_factory=list)
    """Clients of SDKs that tests have made for its sessions, until the fleet ends."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def key(self) -> str:
        return (self.folder.parent / "admin.key").read_text().strip()

    @property
    def log(self) -> Path:
        return self.folder / "proxy.log"

    @property
    def store_file(self) -> Path:
        return Path(self.settings["state_dir"]) / "store" / "store.sqlite3"

    def start(self, *prefix: str) -> None:
        """Start it and wait until it is ready; `prefix` is a command to run it under."""
        self.launch(*prefix)
        self.wait_until_ready()

    def launch(self, *prefix: str) -> None:
        """Start it, without a wait."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "settings.json"
        file.write_text(json.dumps(self.settings))
        command = [sys.executable, "-m", "rolloutfleet_proxy", "--settings", str(file)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*ends_with_this_process(), *prefix, *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                start_new_session=True,
            )
        logs.started(self.log)
        self.boots += 1

    def wait_until_ready(self) -> None:
        """Raises NotServing where it ends before that."""
        assert self.process is not None
        wait_until_ready(self.process, url=f"{self.url}/ready", log=self.log, seconds=START)

    def is_ready(self) -> bool:
        """Whether it says so now."""
        return status(f"{self.url}/ready") == 200

    def sees(self) -> set[int]:
        """Which proxies of the fleet are ready, as it knows them by now."""
        with self.admin() as admin:
            shown = admin.get("/proxies").raise_for_status().json()["proxies"]
        return {each["ordinal"] for each in shown if each["state"] == "ready"}

    def has_probed(self) -> bool:
        """Whether an engine has answered the request by which a proxy that starts tries its gateway."""
        return self.stats()["gateway"]["loses"] is not None

    def wait_until_killed(self, seconds: float) -> None:
        """Return once SIGKILL has ended it, sent by itself or by others. Its helpers are left to notice."""
        assert self.process is not None
        assert self.process.wait(seconds) == -signal.SIGKILL, end_of(self.log)

    def kill_alone(self) -> None:
        """SIGKILL, to the parent process alone: its worker and their helpers end by themselves, before this returns."""
        assert self.process is not None
        helpers = psutil.Process(self.process.pid).children(recursive=True)
        os.kill(self.process.pid, signal.SIGKILL)
        self.wait_until_killed(PATIENCE)
        wait_until_gone(helpers)

    def kill_worker(self) -> None:
        """SIGKILL, to the worker alone: the parent starts another."""
        os.kill(self.stats()["pid"], signal.SIGKILL)

    def kill(self) -> None:
        """SIGKILL, to the parent process, its worker, and their helpers; on return none of them answers any more."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            helpers = psutil.Process(self.process.pid).children(recursive=True)
            os.killpg(self.process.pid, signal.SIGKILL)
            wait_until_gone(helpers)
        self.process.wait(PATIENCE)

    def stop(self) -> None:
        if self.process is not None:
            end_group(self.process)
            self.process = None
            logs.ended(self.log)

    def admin(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"authorization": f"Bearer {self.key}"}, timeout=PATIENCE)

    def start_session(self, *, here: bool = False, **asked: Json) -> "AgentSession":
        """`here`: whatever other proxies have room, at this one."""
        headers = {PLACED: str(self.ordinal)} if here else {}
        with self.admin() as admin:
            reply = admin.post("/sessions", json=asked, headers=headers)
        assert reply.status_code == 201, reply.text
        return AgentSession(self, **{name: reply.json()[name] for name in ("session_id", "api_key", "base_url")})

    def drain(self, id: str, **asked: Json) -> httpx.Response:
        with self.admin() as admin:
            return admin.post("/drain", json={"id": id, **asked})

    def audit(self) -> Json:
        with self.admin() as admin:
            return admin.get("/audit").raise_for_status().json()

    def gauge(self, series: str) -> float:
        """What /metrics says of a series: `name`, or `name{label="value"}`."""
        text = httpx.get(f"{self.url}/metrics", timeout=PATIENCE).raise_for_status().text
        [value] = [line.removeprefix(f"{series} ") for line in text.splitlines() if line.startswith(f"{series} ")]
        return float(value)

    def is_gone(self, session_id: str) -> bool:
        """Whether a session was here and is no more."""
        with self.admin() as admin:
            return admin.get(f"/sessions/{session_id}").status_code == 410

    def stats(self) -> Json:
        with self.admin() as admin:
            return admin.get("/stats").raise_for_status().json()

    def workers_begun(self) -> int:
        """How many it has had since it began; 0 while it has none to tell."""
        try:
            return len(self.stats()["boots"])
        except httpx.HTTPError:
            return 0


@dataclass(frozen=True)
class AgentSession:
    """A session as an agent has it, and what the admin sees of it."""

    proxy: ProxyProcess
    session_id: str
    api_key: str
    base_url: str
    patience: float = PATIENCE
    """Seconds that a call of `raw_chat` may take."""

    def client(self, **options: Any) -> openai.OpenAI:
        made = openai.OpenAI(base_url=self.base_url, api_key=self.api_key, **(_PATIENT | options))
        self.proxy.clients.append(made)
        return made

    def async_client(self, **options: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(base_url=self.base_url, api_key=self.api_key, **(_PATIENT | options))

    def turns(self) -> list[Json]:
        with self.proxy.admin() as admin:
            reply = admin.get(f"/sessions/{self.session_id}/turns", params={"limit": 1000}).raise_for_status()
        turns: list[Json] = reply.json()["turns"]
        return turns

    def show(self) -> Json:
        with self.proxy.admin() as admin:
            return admin.get(f"/sessions/{self.session_id}").raise_for_status().json()

    def post(self, path: str, body: Json = None, **headers: str) -> httpx.Response:
        with self.proxy.admin() as admin:
            return admin.post(f"/sessions/{self.session_id}/{path}", json=body, headers=headers)

    def raw_chat(self, body: Json, **headers: str) -> httpx.Response:
        """A chat call without an SDK; header names are written with underscores."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(
            f"{self.base_url}/chat/completions",
            content=body if isinstance(body, bytes) else json.dumps(body),
            headers={"authorization": f"Bearer {self.api_key}", "content-type": "application/json", **named},
            timeout=self.patience,
        )


@dataclass(frozen=True)
class EngineControl:
    """The simulated engine's own routes."""

    url: str
    pid: int
    command: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    """They have the key that it requires, if any."""

    def log(self) -> list[Json]:
        ended: list[Json] = self._ask("GET", "/log").json()["requests"]
        return ended

    def counters(self) -> dict[str, int]:
        counted: dict[str, int] = self._ask("GET", "/counters").json()
        return counted

    def weight_version(self) -> str:
        version: str = self._ask("GET", "/model_info").json()["weight_version"]
        return version

    def fault(self, kind: str, **options: Json) -> None:
        self._ask("POST", "/faults", {"kind": kind, **options})

    def clear_faults(self) -> None:
        self._ask("DELETE", "/faults")

    def _ask(self, method: str, path: str, body: Json = None) -> httpx.Response:
        reply = httpx.request(method, f"{self.url}{path}", json=body, headers=self.headers, timeout=PATIENCE)
        return reply.raise_for_status()


@dataclass(frozen=True)
class Fleet:
    engines: list[EngineControl]
    gateway: Gateway
    proxies: list[ProxyProcess]

    @property
    def proxy(self) -> ProxyProcess:
        return self.proxies[0]

    @property
    def engine(self) -> EngineControl:
        return self.engines[0]

    def wait_until_complete(self) -> None:
        """Every proxy is ready and knows it of the others, so that new sessions go to all of them; and each has asked
        whether the gateway loses anything, so that the engines count nothing but calls from here on."""
        for proxy in self.proxies:
            proxy.wait_until_ready()
        everyone = {proxy.settings["ordinal"] for proxy in self.proxies}
        until(lambda: all(proxy.sees() == everyone and proxy.has_probed() for proxy in self.proxies))


@contextlib.contextmanager
def running_fleet(
    folder: Path,
    *,
    proxies: int = 1,
    engines: int = 1,
    engine_options: tuple[str, ...] = (),
    engine_key: str | None = None,
    settings: Mapping[str, Json] | None = None,
    environment: Mapping[str, str] | None = None,
    start_proxies: bool = True,
    beside: Fleet | None = None,
) -> Iterator[Fleet]:
    """All its processes, until the block ends. The environment is that of the proxies. Gateway and engines require
    `engine_key`, which is in FOLDER/engine.key then.

    `beside`: the engines and the gateway are those of that fleet, whose faults are cleared in the end.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "admin.key").write_text("an-admin-key-for-tests-alone\n")
    keyed: dict[str, Json] = {}
    key_flag: dict[str, str] = {}
    if engine_key is not None:
        (folder / "engine.key").write_text(f"{engine_key}\n")
        keyed, key_flag = {"gateway_api_key_file": str(folder / "engine.key")}, {"--api-key": engine_key}
    with contextlib.ExitStack() as stack:
        if beside is None:
            options = (*engine_options, *commands.flags(key_flag))
            headers = {} if engine_key is None else {"authorization": f"Bearer {engine_key}"}
            running = [stack.enter_context(_engine(folder, index, options)) for index in range(engines)]
            controls = [EngineControl(engine.url, engine.pid, engine.command, headers) for engine in running]
            gateway = stack.enter_context(running_gateway(folder, [engine.url for engine in running], key_flag))
        else:
            controls, gateway = beside.engines, beside.gateway
            for engine in controls:
                stack.callback(engine.clear_faults)
        ports = free_ports(proxies)
        fleet = Fleet(
            controls,
            gateway,
            [
                ProxyProcess(
                    ordinal,
                    port,
                    folder / f"proxy-{ordinal}",
                    {
                        "fleet": "test",
                        "model": MODEL,
                        "tokenizer": {"path": str(model_path())},
                        "ordinal": ordinal,
                        "replicas": proxies,
                        "port": port,
                        "peers": {"ports": ports},
                        "state_dir": str(folder / f"proxy-{ordinal}" / "state"),
                        "gateway_url": gateway.url,
                        "admin_key_file": str(folder / "admin.key"),
                        **keyed,
                        **(settings or {}),
                    },
                    dict(environment or {}),
                )
                for ordinal, port in enumerate(ports)
            ],
        )
        for proxy in fleet.proxies:
            stack.callback(_give_up_reserve, proxy)
            stack.callback(_close_clients, proxy)
            stack.callback(proxy.stop)
            if start_proxies:
                proxy.launch()
        if start_proxies:
            fleet.wait_until_complete()
        yield fleet


def _close_clients(proxy: ProxyProcess) -> None:
    """An SDK's client refers to itself: left to the collector, its sockets are found unclosed in any later test."""
    for client in proxy.clients:
        client.close()


def _give_up_reserve(proxy: ProxyProcess) -> None:
    """Folders of tests are kept for a while, and there are many."""
    proxy.store_file.with_name(FILE).unlink(missing_ok=True)


def _engine(folder: Path, index: int, options: tuple[str, ...]) -> contextlib.AbstractContextManager[Server]:
    port = free_port()
    command = [sys.executable, "-m", "rolloutfleet_engine", "--port", str(port), "--served-model-name", MODEL]
    return serving(
        [*command, "--seed", str(index), "--log-size", "100000", "--weight-version", "1", *options],
        port=port,
        log=folder / f"engine-{index}.log",
        deadline=START,
        gently=False,
    )


@contextlib.contextmanager
def running_gateway(folder: Path, engines: list[str], flags: Mapping[str, object] | None = None) -> Iterator[Gateway]:
    """The real gateway, with the settings that a fleet gives it, and `flags` over them."""
    command = gateway_command(engines, flags)
    log = folder / "gateway.log"
    with serving(
        command.argv,
        port=command.port,
        log=log,
        ready_path="/readiness",
        deadline=START,
        gently=False,
    ) as server:
        yield Gateway(**asdict(server), metrics_url=command.metrics_url)
