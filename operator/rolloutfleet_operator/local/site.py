"""The state folder of a local fleet: what is in it, and who may use it. It is its user's own; in a folder that was
there before, what the fleet makes is.

DIR/fleet.json       where everything is; there while the fleet is up
DIR/admin.key        the admin key, readable by its owner alone
DIR/gateway.key      the key of the gateway's own routes, readable by its owner alone
DIR/engine.key       the key of generations, and of simulated engines, readable by its owner alone
DIR/ports.json       ports, chosen once, so that addresses stay
DIR/proxies/0 …      the proxies' stores
DIR/dumps/0 …        the proxies' dumps
DIR/kept/0 …         copies of trained sessions (`inspect.keep`)
DIR/settings/        what each proxy is told
DIR/logs/            one log a process
DIR/up.lock          held by the `rolloutfleet up` that runs the fleet, and by its guard
"""

import asyncio
import contextlib
import fcntl
import os
import secrets
import time
from pathlib import Path

import psutil

from rolloutfleet_operator.local import guard

LOOPBACK = "127.0.0.1"
KEY_PREFIX = "rfa-"
LOOK_INTERVAL = 0.1


class LocalFleetError(Exception):
    """The fleet can't be run here; the message is for a person."""


class StateFolder:
    """The layout of a state folder. Nothing is made before `make`."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.address_book = self.path / "fleet.json"
        self.admin_key = self.path / "admin.key"
        self.gateway_key = self.path / "gateway.key"
        self.engine_key = self.path / "engine.key"
        self.ports = self.path / "ports.json"
        self.lock = self.path / "up.lock"
        self.logs = self.path / "logs"
        self.settings = self.path / "settings"

    def store(self, ordinal: int) -> Path:
        return self.path / "proxies" / str(ordinal)

    def dumps(self, ordinal: int) -> Path:
        return self.path / "dumps" / str(ordinal)

    def kept(self, ordinal: int) -> Path:
        return self.path / "kept" / str(ordinal)

    def log(self, name: str) -> Path:
        return self.logs / f"{name}.log"

    def make(self) -> None:
        """Make the folder and the keys, where they are not there. Raises LocalFleetError."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.logs.mkdir(exist_ok=True)
            self.settings.mkdir(exist_ok=True)
            ours = [self.logs, self.settings, *(self.path / each for each in ("proxies", "dumps", "kept"))]
            # Of an earlier release. One that is used for the first time may be somebody's folder for other things, too.
            if self.admin_key.exists():
                ours.append(self.path)
            for folder in ours:
                with contextlib.suppress(FileNotFoundError):
                    folder.chmod(0o700)
            for key in (self.admin_key, self.gateway_key, self.engine_key):
                _make_key(key)
        except OSError as error:
            raise LocalFleetError(f"the state folder {self.path} can't be used: {error.strerror}") from None


def _make_key(path: Path) -> None:
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return
    with os.fdopen(handle, "w") as file:
        file.write(f"{KEY_PREFIX}{secrets.token_urlsafe(32)}\n")


def read_key(path: Path) -> str:
    """The key of that file. Raises LocalFleetError."""
    try:
        key = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise LocalFleetError(f"the key file {path} can't be read: {why}") from None
    if not key:
        raise LocalFleetError(f"the key file {path} is empty")
    return key


class FolderLock:
    """One `up` a folder. The kernel lets go of it when all who hold the file have ended, however they end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handle: int | None = None

    async def take(self) -> None:
        """Waits for what an `up` that was killed left to end. Raises LocalFleetError where another `up` has it."""
        handle = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline = time.monotonic() + 2 * guard.GRACE
            while not _locked(handle):
                holder = _holder(handle)
                if holder is None or psutil.pid_exists(holder) or time.monotonic() > deadline:
                    raise self._taken(holder)
                await asyncio.sleep(LOOK_INTERVAL)
            os.truncate(handle, 0)
            os.pwrite(handle, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle

    def fileno(self) -> int:
        """For a process that shall hold it too."""
        assert self._handle is not None
        return self._handle

    def _taken(self, holder: int | None) -> LocalFleetError:
        return LocalFleetError(
            f"a fleet already runs from {self._path.parent} (process {holder or 'unknown'}); stop it with Ctrl-C or "
            f"kill {holder or 'PID'}, or give another --state-dir"
        )

    def release(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _holder(handle: int) -> int | None:
    """The process that wrote itself into the file."""
    written = os.pread(handle, 32, 0).decode(errors="replace").strip()
    return int(written) if written.isdecimal() else None


def write_whole(file: Path, text: str) -> None:
    """Readers see the old content or the new, never a part."""
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    draft.write_text(text)
    draft.replace(file)
