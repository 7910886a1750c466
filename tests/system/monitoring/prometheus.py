"""A real Prometheus, and its tool for rules: Debian's package `prometheus`."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from tests.processes import free_port, serving
from tests.waiting import PATIENCE, START, until


def program(name: str) -> str:
    """`prometheus` or `promtool`. A test that needs it fails where it is missing."""
    found = shutil.which(name)
    assert found is not None, f"{name} is not installed: apt-get install prometheus (.ci/run installs it)"
    return found


@dataclass(frozen=True)
class Prometheus:
    client: httpx.Client

    def get(self, path: str, **asked: str) -> Any:
        reply = self.client.get(f"/api/v1/{path}", params=asked).json()
        assert reply["status"] == "success", reply
        return reply["data"]

    def series(self, expression: str) -> list[dict[str, Any]]:
        """What the expression gives now, but for figures that are none."""
        found = self.get("query", query=expression)["result"]
        return [each for each in found if each["value"][1] != "NaN"]

    def comes(self, expression: str, *, count: int = 1) -> list[dict[str, Any]]:
        """Wait for that many series."""
        found: list[dict[str, Any]] = until(lambda: found if len(found := self.series(expression)) >= count else None)
        return found


@contextmanager
def running(config: Path, folder: Path) -> Iterator[Prometheus]:
    port = free_port()
    command = [
        program("prometheus"),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
    ]
    log = folder / "prometheus.log"
    with (
        serving(command, port=port, log=log, ready_path="/-/ready", deadline=START) as server,
        httpx.Client(base_url=server.url, timeout=PATIENCE) as client,
    ):
        yield Prometheus(client)
