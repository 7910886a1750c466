"""The processes of a rig: engine stub, gateway, proxy; each with the command that is recorded."""

import json
import secrets
import shlex
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml
from tests.processes import free_port, free_ports

from benchmarks.peers.environments import python_of
from benchmarks.rigs import processes
from benchmarks.rigs.binaries import STUB
from benchmarks.rigs.load import Target
from benchmarks.rigs.processes import Running
from benchmarks.rigs.texts import Texts
from rolloutfleet.spec import FleetSpec
from rolloutfleet_operator import commands, smg

MODEL = "bench"
YARDSTICK_OPTIONS = (
    # The routing key acts, and nothing is sent twice or shut out behind our back.
    "--policy manual --disable-retries --disable-circuit-breaker --health-check-interval-secs 5 --log-level warn"
)
GatewayName = Literal["gateway", "yardstick"]
"""`smg` as fleets have it; or the one before it, sglang-router 0.3.2, which never changes any more."""


@dataclass(frozen=True, slots=True)
class Stub:
    url: str
    process: Running

    def set_latency(self, seconds: float) -> None:
        self._put(f"latency={seconds}s")

    def set_token_latency(self, seconds: float) -> None:
        """The time between two chunks of a stream."""
        self._put(f"token_latency={seconds}s")

    def set_variant(self, number: int) -> None:
        """Say the reply of that number, and no other."""
        self._put(f"variant={number}")

    def set_payload(self, nbytes: int, *, every: int) -> None:
        """One reply of so many carries so many bytes of expert routing; none where `nbytes` is 0."""
        self._put(f"payload={nbytes}&every={every}")

    def _put(self, query: str) -> None:
        request = urllib.request.Request(f"{self.url}/stub?{query}", method="PUT")
        urllib.request.urlopen(request, timeout=10).close()

    def counts(self) -> dict[str, Any]:
        """What it has answered: generated, chatted, chunks, callers_left, most_in_flight."""
        return get_json(f"{self.url}/stub")


@dataclass(frozen=True, slots=True)
class Gateway:
    name: GatewayName
    url: str
    process: Running

    @property
    def target(self) -> Target:
        return Target(name=self.name, url=self.url, model=MODEL)

    def wait_until_ready(self) -> None:
        self.process.wait_until(lambda: answers(f"{self.url}/readiness"))

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.process.pid)


@dataclass(frozen=True, slots=True)
class Proxy:
    url: str
    process: Running
    admin_key_file: Path
    state_dir: Path

    @property
    def target(self) -> Target:
        return Target(name="proxy", url=self.url, model=MODEL, admin_key_file=self.admin_key_file)

    def cpu_seconds(self) -> float:
        return processes.cpu_seconds(self.process.pid)

    def memory(self) -> processes.Memory:
        return processes.memory(self.process.pid)

    def get(self, path: str) -> bytes:
        return get(self.url + path, key=self.admin_key_file.read_text().strip())

    def get_json(self, path: str) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.get(path))
        return answer


def get(url: str, *, key: str | None = None) -> bytes:
    request = urllib.request.Request(url, headers={} if key is None else {"Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        body: bytes = answer.read()
        return body


def get_json(url: str) -> dict[str, Any]:
    answer: dict[str, Any] = json.loads(get(url))
    return answer


def answers(url: str) -> bool:
    """Whether a GET of the address gives a 2xx now."""
    try:
        get(url)
    except (urllib.error.URLError, OSError):
        return False
    return True


@contextmanager
def stub(folder: Path, *, texts: Texts, model: Path) -> Iterator[Stub]:
    """The engine; it has one core at most, as the load generator has: see the README."""
    url = f"http://127.0.0.1:{free_port()}"
    line = [str(STUB), f"-listen={url.removeprefix('http://')}", f"-replies={texts.replies}", f"-model-path={model}"]
    with Running(line, log=folder / "stub.log", environment={"GOMAXPROCS": "1"}) as process:
        process.wait_until(lambda: answers(f"{url}/health"))
        yield Stub(url=url, process=process)


@contextmanager
def gateway(folder: Path, *, engine_url: str, name: GatewayName = "gateway") -> Iterator[Gateway]:
    """Started, and not waited for: what stands before it may start meanwhile."""
    port, metrics_port = free_ports(2)
    url = f"http://127.0.0.1:{port}"
    line = [
        *(_fleets_gateway() if name == "gateway" else _yardstick()),
        *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", engine_url),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics_port)),
    ]
    with Running(line, log=folder / f"{name}.log") as process:
        yield Gateway(name=name, url=url, process=process)


def _fleets_gateway() -> list[str]:
    spec = FleetSpec.model_validate({"model": MODEL, "engine": {}})
    flags = smg.flags(spec) | {"--health-check-interval-secs": 5}
    return [*commands.module(sys.executable, smg.MODULE), *commands.flags(flags)]


def _yardstick() -> list[str]:
    python = str(python_of("sglang_router"))
    return [*commands.module(python, "sglang_router.launch_router"), *shlex.split(YARDSTICK_OPTIONS)]


@contextmanager
def proxy(
    folder: Path,
    *,
    upstream: Gateway,
    model: Path,
    settings: Mapping[str, Any] | None = None,
    module: str = "rolloutfleet_proxy",
    prefix: tuple[str, ...] = (),
    admin_key: str | None = None,
    python: str | Path = sys.executable,
) -> Iterator[Proxy]:
    """One proxy, on the store of the folder if there is one; `settings` go over the rig's own, `prefix` is a command
    to run it under, `python` the interpreter that has it installed."""
    folder.mkdir(parents=True, exist_ok=True)
    port = (settings or {}).get("port") or free_port()
    url = f"http://127.0.0.1:{port}"
    key = folder / "admin.key"
    key.write_text((admin_key or secrets.token_urlsafe(24)) + "\n", encoding="ascii")
    whole = {
        "fleet": "bench",
        "model": MODEL,
        "tokenizer": {"path": str(model)},
        "port": port,
        "state_dir": str(folder / "state"),
        "gateway_url": upstream.url,
        "admin_key_file": str(key),
        **(settings or {}),
    }
    file = folder / "proxy.yaml"
    file.write_text(yaml.safe_dump(whole), encoding="utf-8")
    line = [*prefix, str(python), "-m", module, "--settings", str(file)]
    with Running(line, log=folder / "proxy.log") as process:
        process.wait_until(lambda: answers(f"{url}/ready"))
        yield Proxy(url=url, process=process, admin_key_file=key, state_dir=folder / "state")
