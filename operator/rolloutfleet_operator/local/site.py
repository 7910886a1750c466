"""The state folder of a local fleet: what is in it, and who may use it.

DIR/fleet.json       where everything is; there while the fleet is up
DIR/admin.key        the admin key, readable by its owner alone
DIR/ports.json       ports, chosen once, so that addresses stay
DIR/proxies/0 …      the proxies' stores
DIR/dumps/0 …        the proxies' dumps
DIR/settings/        what each proxy is told
DIR/logs/            one log a process
DIR/up.lock          held by the `rolloutfleet up` that runs the fleet
"""

import fcntl
import json
import os
import random
import secrets
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

LOOPBACK = "127.0.0.1"
KEY_PREFIX = "rfa-"
PORTS = range(20_000, 30_000)
"""Below the range that outgoing connections take theirs from, so that none sits on a dead child's port
when it is started again."""


class LocalFleetError(Exception):
    """The fleet can't be run here; the message is for a person."""


class StateFolder:
    """The layout of a state folder. Nothing is made before `make`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.address_book = self.path / "fleet.json"
        self.admin_key = self.path / "admin.key"
        self.ports = self.path / "ports.json"
        self.lock = self.path / "up.lock"
        self.logs = self.path / "logs"
        self.settings = self.path / "settings"

    def store(self, ordinal: int) -> Path:
        return self.path / "proxies" / str(ordinal)

    def dumps(self, ordinal: int) -> Path:
        return self.path / "dumps" / str(ordinal)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def make(self) -> None:
        """Make the folder and the admin key, where they are not there. Raises LocalFleetError."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            self.settings.mkdir(exist_ok=True)
            self._make_key()
        except OSError as error:
            raise LocalFleetError(f"the state folder {self.path} can't be used: {error.strerror}") from None

    def _make_key(self) -> None:
        try:
            handle = os.open(self.admin_key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        with os.fdopen(handle, "w") as file:
            file.write(f"{KEY_PREFIX}{secrets.token_urlsafe(32)}\n")


class FolderLock:
    """One `up` a folder. The kernel lets go of it when the process ends, however it ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    def take(self) -> None:
        """Raises LocalFleetError where another process has it."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise LocalFleetError(
                f"a fleet already runs from {self._path.parent} (process {holder}); stop it with Ctrl-C or "
                f"kill {holder}, or give another --state-dir"
            ) from None
        os.truncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        self._handle = handle

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def choose_ports(file: Path, names: Iterable[str], rng: random.Random) -> dict[str, int]:
    """A port for each name: the one in `file` while it is free, else a new one. Keeps the choice in `file`."""
    kept = _kept_ports(file)
    chosen: dict[str, int] = {}
    for name in names:
        port = kept.get(name)
        if port is None or port in chosen.values() or not is_free(port):
            port = _new_port({*kept.values(), *chosen.values()}, rng)
        chosen[name] = port
    write_whole(file, json.dumps({**kept, **chosen}, indent=1))
    return chosen


def _kept_ports(file: Path) -> dict[str, int]:
    try:
        kept = json.loads(file.read_text())
    except (OSError, ValueError):
        return {}
    return {str(name): port for name, port in kept.items() if isinstance(port, int)}


def _new_port(taken: set[int], rng: random.Random) -> int:
    for port in rng.sample(PORTS, 1000):
        if port not in taken and is_free(port):
            return port
    raise LocalFleetError(f"no free port on {LOOPBACK} between {PORTS.start} and {PORTS.stop}")


def is_free(port: int) -> bool:
    """Whether a server could listen on it now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def write_whole(file: Path, text: str) -> None:
    """Readers see the old content or the new, never a part."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(file)


def address_book(
    *,
    name: str,
    folder: StateFolder,
    gateway_url: str,
    engine_urls: Iterable[str],
    proxies: Mapping[int, tuple[str, int]],
) -> dict[str, Any]:
    """What fleet.json holds; `proxies` gives url and process id for each ordinal."""
    return {
        "name": name,
        "admin_key_file": str(folder.admin_key),
        "gateway": {"url": gateway_url},
        "engines": [{"url": url} for url in engine_urls],
        "proxies": [{"ordinal": ordinal, "url": url, "pid": pid} for ordinal, (url, pid) in sorted(proxies.items())],
    }
