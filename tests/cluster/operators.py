"""A real `rolloutfleet-operator run` in a process of its own."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx
from tests import logs
from tests.cluster.apiserver import ApiServer
from tests.waiting import PATIENCE, until

from rolloutfleet_operator.policy.reasons import Metric

IMAGES: Final = ("--proxy-image=proxy:1", "--gateway-image=gateway:1", "--simulated-engine-image=engine:1")


class OperatorProcess:
    """An operator of one namespace, or of all. It may be killed and started again."""

    def __init__(
        self, server: ApiServer, folder: Path, port: int, namespace: str, *flags: str, code: Path | None = None
    ) -> None:
        """`code` is a folder with packages of another release, which stand for those of this one."""
        self._server, self.log = server, folder / "operator.log"
        self._environment = {} if code is None else {"PYTHONPATH": str(code)}
        self.url = f"http://127.0.0.1:{port}"
        logs.started(self.log)
        self._flags = (f"--lease-namespace={namespace}", f"--listen=127.0.0.1:{port}", *IMAGES, *flags)
        self.process = self._started()

    def _started(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "rolloutfleet_operator.cli", "run", *self._flags],
                env={**os.environ, **self._environment, "KUBECONFIG": str(self._server.kubeconfig)},
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    def start_again(self) -> None:
        assert self.process.poll() is not None
        self.process = self._started()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=PATIENCE)

    def said(self) -> str:
        return self.log.read_text()

    def passes(self) -> float:
        """How many it has made since it began."""
        return self.figure(f"{Metric.PASS_SECONDS}_count")

    def figure(self, name: str) -> float:
        """A metric without labels, as it is scraped; 0 where there is none."""
        for line in httpx.get(f"{self.url}/metrics", trust_env=False, timeout=PATIENCE).text.splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[-1])
        return 0.0

    def until(self, what: Callable[[], Any], *, seconds: float = PATIENCE) -> Any:
        """Return what `what` returns, once that is true."""
        return until(what, seconds=seconds)

    def until_passes(self, more: int) -> None:
        """Return after so many more passes: a cause of what they would have done."""
        enough = self.passes() + more
        self.until(lambda: self.passes() >= enough)


@contextmanager
def running(
    server: ApiServer, folder: Path, port: int, namespace: str, *flags: str, code: Path | None = None
) -> Iterator[OperatorProcess]:
    folder.mkdir(exist_ok=True)
    operator = OperatorProcess(server, folder, port, namespace, *flags, code=code)
    try:
        yield operator
    finally:
        operator.kill()
        logs.ended(operator.log)
