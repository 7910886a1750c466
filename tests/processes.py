"""Servers that a test run starts, waits for, and surely ends."""

import contextlib
import http.client
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests import logs
from tests.waiting import until

LOG_LINES_SHOWN = 40
SECONDS_TO_END = 15.0


class NotServing(Exception):
    """A server ended, or did not come up in time; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that answers; its process leads a process group of its own."""

    url: str
    pid: int
    log: Path
    seconds_to_start: float
    command: tuple[str, ...]
    """What started it, and would again."""


PORTS = range(10_000, 20_000)
"""Below those that the kernel gives to connections and to who asks for any, and those of `rolloutfleet up`: nobody
takes one while what it is for has not started yet, or is down for a while."""
BLOCK = 100
"""How many of them a process takes at once."""
_blocks: list[socket.socket] = []
"""Each holds the blocks of this process against others on this machine, until it ends."""
_left: list[int] = []


def free_port() -> int:
    """A port of 127.0.0.1 on which nobody listens, given to nobody else while this process runs."""
    while True:
        if not _left:
            _left.extend(_block())
        port = _left.pop()
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def _block() -> range:
    """Ports that are this process's alone: who holds the first of them for UDP, which nothing here speaks, has all."""
    for first in PORTS[::BLOCK]:
        holder = socket.socket(type=socket.SOCK_DGRAM)
        try:
            holder.bind(("127.0.0.1", first))
        except OSError:
            holder.close()
            continue
        _blocks.append(holder)
        return range(first, first + BLOCK)
    raise AssertionError(f"every port from {PORTS.start} to {PORTS.stop} is another process's")


def free_ports(count: int) -> list[int]:
    """So many of them."""
    return [free_port() for _ in range(count)]


@contextlib.contextmanager
def serving(
    command: Sequence[str | Path],
    *,
    port: int,
    log: Path,
    host: str = "127.0.0.1",
    ready_path: str = "/health",
    environment: Mapping[str, str] | None = None,
    deadline: float,
    gently: bool = True,
) -> Iterator[Server]:
    """Runs `command` until the block ends, and has it killed then unless `gently`.

    Raises NotServing when it does not answer `ready_path` within `deadline`.
    """
    url = f"http://{host}:{port}"
    started = time.monotonic()
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*ends_with_this_process(), *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    logs.started(log)
    try:
        wait_until_ready(process, url=url + ready_path, log=log, seconds=deadline)
        took = time.monotonic() - started
        yield Server(url=url, pid=process.pid, log=log, seconds_to_start=took, command=tuple(map(str, command)))
    finally:
        end_group(process, gently=gently)
        logs.ended(log)


def ends_with_this_process() -> list[str]:
    """Has the kernel end the server also when this process is killed and no `finally` runs."""
    setpriv = shutil.which("setpriv")
    return [setpriv, "--pdeathsig", "KILL", "--"] if setpriv else []


def wait_until_ready(process: subprocess.Popen[bytes], *, url: str, log: Path, seconds: float) -> None:
    """Raises NotServing."""

    def is_ready() -> bool:
        if process.poll() is not None:
            raise NotServing(f"It ended with status {process.returncode}. The end of its log:\n{end_of(log)}")
        return status(url) == 200

    try:
        until(is_ready, seconds=seconds)
    except AssertionError:
        raise NotServing(f"No answer from {url} in time. The end of its log:\n{end_of(log)}") from None


def status(url: str) -> int | None:
    """Of a plain GET; a client of httpx costs more than all else that is done between two tries."""
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.netloc, timeout=5)
    try:
        connection.request("GET", where.path)
        return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def end_of(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])


def end_group(process: subprocess.Popen[bytes], *, gently: bool = True) -> None:
    """Ends a process and its children; those that do not listen, and all unless `gently`, are killed."""
    if gently:
        signal_group(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(SECONDS_TO_END)
    signal_group(process.pid, signal.SIGKILL)
    process.wait(SECONDS_TO_END)


def signal_group(group: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)
