"""Finds a Docker daemon that can carry a cluster, or starts one of our own.

Ours is private: its socket, data and process are its own, and `down --all` ends it. It is started where none answers,
or where the one that answers can't start privileged containers because root lacks a capability here
(`held_capabilities.py`).
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from ipaddress import IPv4Network
from pathlib import Path

from toolchain.cache import alone
from toolchain.kubernetes.docker import held_capabilities
from toolchain.kubernetes.docker.client import Docker
from toolchain.kubernetes.failures import ClusterError, CommandFailed
from toolchain.kubernetes.paths import LOCKS
from toolchain.kubernetes.progress import step

RUN = Path("/run/rolloutfleet")
SOCKET = RUN / "docker.sock"
PID = RUN / "docker.pid"
LOG = RUN / "docker.log"
RUNTIME = RUN / "held-capabilities"
START_SECONDS = 180.0
STOP_SECONDS = 180.0

PRIVATE = Docker(f"unix://{SOCKET}", private=True)
MACHINES = Docker(None)

CAN_T_START = (
    "A kind cluster needs Docker, and none answers here. Start the daemon of this machine, or let this command start"
    " one of its own, for which it has to be root with `dockerd` installed"
    " (on Debian and Ubuntu: apt-get install docker.io iptables)."
)


def found() -> Docker | None:
    """A daemon that answers and can carry a cluster."""
    if _answers(PRIVATE):
        return PRIVATE
    if _answers(MACHINES) and (not held_capabilities.lacks_any() or _drops_capabilities(MACHINES)):
        return MACHINES
    return None


def can_be_had() -> bool:
    """Whether `ensure` could do its work, as far as can be told without doing it."""
    if shutil.which("docker") is None:
        return False
    return found() is not None or (os.geteuid() == 0 and shutil.which("dockerd") is not None)


def ensure(*, data: Path, addresses: IPv4Network) -> Docker:
    """A daemon to use. Ours keeps its images in `data` and takes networks from `addresses`. Raises ClusterError."""
    if docker := found():
        return docker
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("docker") is None:
        raise ClusterError(CAN_T_START)
    with alone(LOCKS / "docker"):
        if not _answers(PRIVATE):
            with step("Starting a Docker daemon of our own"):
                _start(data, addresses)
    return PRIVATE


@contextlib.contextmanager
def stopped_on_failure(docker: Docker, *, was_there: bool) -> Iterator[None]:
    """Ends our daemon again where the block fails and the block's caller started it."""
    try:
        yield
    except BaseException:
        if docker.private and not was_there:
            stop()
        raise


def stop() -> bool:
    """End our daemon, and the containers it still runs. False where it wasn't running."""
    pid = running()
    if pid is None:
        return False
    for network in ("kind",):
        PRIVATE.succeeds("network", "rm", network)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_SECONDS
    while _is_ours(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise ClusterError(f"the Docker daemon (pid {pid}) had to be killed; its last words are in {LOG}")
        time.sleep(0.05)
    shutil.rmtree(RUN, ignore_errors=True)
    return True


def running() -> int | None:
    """The pid of our daemon."""
    try:
        pid = int(PID.read_text())
    except (OSError, ValueError):
        return None
    return pid if _is_ours(pid) else None


def _is_ours(pid: int) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        ended = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False
    return str(PID).encode() in words and not ended


def _answers(docker: Docker) -> bool:
    if docker.private and not SOCKET.exists():
        return False
    return docker.succeeds("version", "--format", "{{.Server.Version}}", seconds=60)


def _drops_capabilities(docker: Docker) -> bool:
    try:
        return docker("info", "--format", "{{.DefaultRuntime}}", seconds=60).strip() == RUNTIME.name
    except CommandFailed:
        return False


def _start(data: Path, addresses: IPv4Network) -> None:
    RUN.mkdir(parents=True, exist_ok=True)
    data.mkdir(parents=True, exist_ok=True)
    with LOG.open("w") as log:
        daemon = subprocess.Popen(
            _command(data, addresses),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # outlives this command, and its Ctrl-C
        )
    try:
        _wait_until_it_answers(daemon)
    except BaseException:
        daemon.terminate()
        daemon.wait(STOP_SECONDS)
        raise


def _wait_until_it_answers(daemon: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _answers(PRIVATE):
        if daemon.poll() is not None or time.monotonic() > deadline:
            last = "\n".join(f"    {line}" for line in LOG.read_text().splitlines()[-10:])
            raise ClusterError(f"the Docker daemon did not start; its last words:\n{last}")
        time.sleep(0.2)


def _command(data: Path, addresses: IPv4Network) -> list[str]:
    line = [
        *("dockerd", "--host", f"unix://{SOCKET}", "--pidfile", str(PID)),
        *("--data-root", str(data), "--exec-root", str(RUN / "exec")),
        # kind makes the one network that is needed. Without a pool it would be taken from wherever Docker likes.
        *("--bridge", "none", "--default-address-pool", f"base={addresses},size=24"),
        *("--log-level", "warn"),
    ]
    if held_capabilities.lacks_any():
        _write_runtime()
        line += ["--add-runtime", f"{RUNTIME.name}={RUNTIME}", "--default-runtime", RUNTIME.name]
    return line


def _write_runtime() -> None:
    # A copy: the daemon may outlive the clone it was started from.
    source = Path(held_capabilities.__file__).read_text()
    RUNTIME.write_text(f"#!{Path(sys.executable).resolve()} -SE\n{source}")
    RUNTIME.chmod(0o755)
