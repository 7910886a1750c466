"""A gateway that finds its engines by the name service: at its start, and until their addresses are others'."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
from tests.fleets import is_alive
from tests.processes import ends_with_this_process, free_port
from tests.waiting import START, until

from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import RunningEngine, running_engine
from rolloutfleet_operator import commands, smg

CALL = {"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
NAMES = """\
import json, socket
real = socket.getaddrinfo
def getaddrinfo(host, port, *rest, **more):
    if host != "engines.example":
        return real(host, port, *rest, **more)
    found = json.load(open({file!r}))
    if not found:
        raise socket.gaierror(socket.EAI_NONAME, "no such name")
    return [(2, 1, 6, "", (each, port)) for each in found]
socket.getaddrinfo = getaddrinfo
"""
"""A name service whose answer stands in a file."""


class Gateway:
    """In a pod's command, with the name service of a file."""

    def __init__(self, folder: Path, engine_port: int) -> None:
        self._names, self._port = folder / "names.json", free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        key = folder / "control.key"
        key.write_text("secret\n")
        gateway = smg.command(sys.executable, control_key=key, api_key=None)
        _, _, source, *words = smg.with_engines_of(
            "engines.example", engine_port, gateway_port=self._port, control_key=key, command=gateway
        )
        flags = {"--host": "127.0.0.1", "--port": self._port, "--policy": "manual", "--disable-retries": None}
        flags |= {"--health-check-interval-secs": 1, "--worker-startup-check-interval": 1, "--log-level": "warn"}
        start = [sys.executable, "-c", NAMES.format(file=str(self._names)) + source, *words]
        self.command = [*start, *commands.flags(flags), *smg.pushed_engines()]

    def resolve(self, *hosts: str) -> None:
        self._names.write_text(json.dumps(hosts))

    def workers(self) -> set[str]:
        answer = httpx.get(f"{self.url}/workers", headers={"authorization": "Bearer secret"})
        return {each["url"] for each in answer.json()["workers"]}

    def status(self) -> int:
        return httpx.post(f"{self.url}/generate", json=CALL).status_code

    @contextmanager
    def running(self) -> Iterator["subprocess.Popen[bytes]"]:
        process = subprocess.Popen([*ends_with_this_process(), *self.command], start_new_session=True)
        try:
            until(self._answers, seconds=START)
            yield process
        finally:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        try:
            return bool(self.workers()) and self.status() == 200
        except httpx.HTTPError:
            return False


def calls(engine: RunningEngine) -> int:
    """Generations that it was asked for."""
    return int(httpx.get(f"{engine.url}/counters").json()["received"])


def test_a_starting_gateway_has_the_engines_of_its_service(tmp_path: Path) -> None:
    with running_engine(EngineOptions()) as engine:
        port = int(engine.url.rpartition(":")[2])
        gateway = Gateway(tmp_path, port)
        gateway.resolve("127.0.0.1")
        with gateway.running():
            assert gateway.workers() == {engine.url}


def test_an_address_that_became_another_fleets_gets_no_call(tmp_path: Path) -> None:
    """An engine goes while there is no operator, and one of another fleet comes at its address."""
    with running_engine(EngineOptions()) as engine:
        port = int(engine.url.rpartition(":")[2])
        gateway = Gateway(tmp_path, port)
        gateway.resolve("127.0.0.1")
        with gateway.running():
            gateway.resolve()
            until(lambda: gateway.workers() == set(), seconds=START)
            before = calls(engine)
            assert gateway.status() in (404, 503)
            assert calls(engine) == before > 0


def test_the_lookup_of_engines_ends_with_its_gateway(tmp_path: Path) -> None:
    with running_engine(EngineOptions()) as engine:
        gateway = Gateway(tmp_path, int(engine.url.rpartition(":")[2]))
        gateway.resolve("127.0.0.1")
        with gateway.running() as process:
            [beside] = psutil.Process(process.pid).children()
            process.kill()
            until(lambda: not is_alive(beside))
