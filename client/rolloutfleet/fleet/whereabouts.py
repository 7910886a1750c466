"""Where a fleet answers and the key to it: from a URL, a local fleet's file, or a fleet's name on Kubernetes.

A `Whereabouts` can be pickled, so each rank and worker process makes a `Fleet` of its own from it. It holds the admin
key: don't log it. (Its text leaves the key out.)
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel

from rolloutfleet.fleet.exceptions import BadArgument, Unreachable
from rolloutfleet.fleet.transport import client_options, read_answer, send
from rolloutfleet.wire import ProxyList

ADDRESS_BOOK: Final = "fleet.json"
STATE_ROOT: Final = Path(".rolloutfleet")
KEY_FILE_VARIABLE: Final = "ROLLOUTFLEET_ADMIN_KEY_FILE"
MOUNTED_KEYS: Final = Path("/etc/rolloutfleet/keys/admin-keys")
"""Where a pod finds the keys that mounts the fleet's Secret, `NAME-keys`, as the proxies do."""
_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_ANSWER_TIMEOUT: Final = 10.0


@dataclass(frozen=True, slots=True)
class EngineAddress:
    """An engine of a local fleet, to call it directly: `httpx.post(f"{engine.url}/…", headers=engine.headers)`."""

    url: str
    api_key: str | None = field(repr=False)
    """The key that it requires; None where it requires none."""

    @property
    def headers(self) -> Mapping[str, str]:
        """They have the key."""
        return {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}


@dataclass(frozen=True, slots=True)
class Whereabouts:
    """What a `Fleet` begins with. The rest it asks for: `GET /proxies` names all proxies."""

    urls: tuple[str, ...]
    """Addresses that may be asked first: some proxies, or one address before all of them."""
    admin_key: str = field(repr=False)
    book: Path | None = None
    """A local fleet's file, which is read again when nobody answers: its addresses may have changed."""

    @classmethod
    def from_url(cls, url: str, *, admin_key: str | None = None, admin_key_file: str | Path | None = None) -> Self:
        """A fleet by the address of any of its proxies, or of what stands before them.

        The key is `admin_key`, else in `admin_key_file`, else in the file that ROLLOUTFLEET_ADMIN_KEY_FILE names.
        Raises BadArgument.
        """
        return cls(urls=(_address("url", url),), admin_key=_key(admin_key, admin_key_file))

    @classmethod
    def from_file(cls, path: str | Path | None = None, *, admin_key_file: str | Path | None = None) -> Self:
        """A local fleet by its `fleet.json`, or the folder that has it; by default the one whose `up` runs here.

        The key is in `admin_key_file`, else in the file that `fleet.json` names. Raises BadArgument.
        """
        file = _book(path)
        entries = _entries(file)
        key = _admin_key("path", entries.admin_key_file) if admin_key_file is None else _key(None, admin_key_file)
        return cls(urls=entries.urls, admin_key=key, book=file)

    @classmethod
    def on_kubernetes(
        cls,
        name: str,
        *,
        namespace: str | None = None,
        admin_key: str | None = None,
        admin_key_file: str | Path | None = None,
    ) -> Self:
        """A fleet by its name, from a pod of the same cluster: it answers at the Service of that name.

        The namespace is the pod's own unless given. The key is found as in `from_url`, else where a pod finds it that
        mounts the Secret `NAME-keys` at /etc/rolloutfleet/keys. The Kubernetes API is not asked. Raises BadArgument.
        """
        if not name or not all(letter.isalnum() or letter == "-" for letter in name):
            raise BadArgument("name", f"{name!r} is not a valid name of a RolloutFleet")
        where = namespace or _own_namespace()
        if admin_key is None and admin_key_file is None and KEY_FILE_VARIABLE not in os.environ:
            admin_key_file = MOUNTED_KEYS
        return cls(urls=(f"http://{name}.{where}.svc",), admin_key=_key(admin_key, admin_key_file))

    def again(self) -> Self:
        """The same, with what the local fleet's file says now; unchanged where it can't be read."""
        if self.book is None:
            return self
        try:
            entries = _entries(self.book)
        except BadArgument:
            return self
        return replace(self, urls=entries.urls)

    def engines(self) -> tuple[EngineAddress, ...]:
        """The engines, which a local fleet's file names; none of other fleets. Raises BadArgument."""
        if self.book is None:
            return ()
        entries = _entries(self.book)
        key = None if entries.engine_key_file is None else _read_key("path", entries.engine_key_file, "engine")
        return tuple(EngineAddress(engine.url, key) for engine in entries.engines)

    def proxies(self) -> tuple[str, ...]:
        """The addresses of all proxies now, asked of the first that answers. For one-time use in a process of its own.

        Raises Unreachable, Refused, or FleetError where something else than a proxy answers.
        """
        silent = []
        with httpx.Client(**client_options(self.admin_key, self.urls, timeout=_ANSWER_TIMEOUT)) as client:
            for url in self.again().urls:
                try:
                    answer = send(client, "GET", f"{url}/proxies")
                except Unreachable as error:
                    silent.append(f"{url}: {error.why}")
                    continue
                return tuple(proxy.url for proxy in read_answer(answer, ProxyList).proxies)
        raise Unreachable(f"no proxy answers at {', '.join(silent)}")


def _address(argument: str, url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadArgument(argument, f"{url!r} is not an http:// or https:// URL")
    return url.rstrip("/")


def _key(key: str | None, file: str | Path | None) -> str:
    if key is not None and file is not None:
        raise BadArgument("admin_key", "given beside admin_key_file; keep one")
    if key is not None:
        if not key.strip():
            raise BadArgument("admin_key", "is empty")
        return key.strip()
    named = file if file is not None else os.environ.get(KEY_FILE_VARIABLE)
    if named is None:
        raise BadArgument("admin_key", f"say admin_key or admin_key_file, or set {KEY_FILE_VARIABLE}")
    return _admin_key("admin_key_file", Path(named))


def _admin_key(argument: str, file: Path) -> str:
    """The first of the keys in a file: while one is rotated there are two, one a line."""
    return _read_key(argument, file, "admin").split()[0]


def _read_key(argument: str, file: Path, kind: str) -> str:
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadArgument(argument, f"the {kind} key file {file} can't be read: {why}") from None
    if not text:
        raise BadArgument(argument, f"the {kind} key file {file} is empty")
    return text


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        raise BadArgument("namespace", "not running in a pod: name the fleet's namespace") from None


def _book(path: str | Path | None) -> Path:
    if path is None:
        books = sorted(STATE_ROOT.glob(f"*/{ADDRESS_BOOK}"))
        if len(books) == 1:
            return books[0]
        found = ", ".join(str(book.parent) for book in books)
        several = f"several fleets run from here; choose one: {found}"
        none = f"no fleet runs from {STATE_ROOT.absolute()}; start one with `rolloutfleet up FILE`, or choose another"
        raise BadArgument("path", several if books else none)
    file = Path(path)
    return file / ADDRESS_BOOK if file.is_dir() else file


class _Named(BaseModel):
    url: str


class _Entries(BaseModel):
    """The entries of a local fleet's file."""

    proxies: list[_Named]
    admin_key_file: Path
    engines: list[_Named] = []
    engine_key_file: Path | None = None
    """None in the file of a fleet whose `up` is older than this key."""

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(proxy.url for proxy in self.proxies)


def _entries(file: Path) -> _Entries:
    """Raises BadArgument."""
    try:
        entries = _Entries.model_validate_json(file.read_bytes())
    except FileNotFoundError:
        raise BadArgument("path", f"no fleet runs from {file.parent}: there is no {file.name} in it") from None
    except OSError as error:
        raise BadArgument("path", f"{file} can't be read: {error.strerror}") from None
    except ValueError:
        raise BadArgument("path", f"{file} is not the {ADDRESS_BOOK} of a local fleet") from None
    if not entries.proxies:
        raise BadArgument("path", f"the fleet of {file} has no proxies")
    return entries
