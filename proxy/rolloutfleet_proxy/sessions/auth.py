"""Who is calling: the admin, or one session by its key; and the files that keys are read from. Promise 10."""

import hmac
import ipaddress
import secrets
from collections.abc import Iterable
from pathlib import Path

from rolloutfleet.settings import ProxySettings
from rolloutfleet_proxy.ids import key_hash
from rolloutfleet_proxy.telemetry import logger

ADMIN_KEY_FILE = "admin.key"

MINIMUM_KEY = 16
"""Characters of an admin key at the least."""


class BadKeyFile(Exception):
    """A key file can't be used; the message says why and what to do."""


class AdminKeys:
    """The admin's keys, held as hashes and compared in constant time. More than one is valid while keys rotate."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._hashes = []
        for key in keys:
            if len(key) < MINIMUM_KEY:
                raise BadKeyFile(f"an admin key has {len(key)} characters; it needs at least {MINIMUM_KEY}")
            self._hashes.append(key_hash(key))
        if not self._hashes:
            raise BadKeyFile("there is no admin key")
        self._vouchers = [_voucher(known) for known in self._hashes]

    def match(self, key: str | None) -> bool:
        if key is None:
            return False
        hashed = key_hash(key)
        # All are compared, whichever matches: the time says nothing about which.
        matches = [hmac.compare_digest(known, hashed) for known in self._hashes]
        return any(matches)

    def voucher(self) -> str:
        """What shows another proxy of the fleet that a call comes from one."""
        return self._vouchers[0]

    def vouched(self, voucher: str) -> bool:
        """Whether one who has any of the keys has made it."""
        given = voucher.encode()
        matches = [hmac.compare_digest(known.encode(), given) for known in self._vouchers]
        return any(matches)


def _voucher(hashed: bytes) -> str:
    return hmac.digest(hashed, b"a call that a proxy of this fleet passes on", "sha256").hex()


def load_admin_keys(file: Path) -> AdminKeys:
    """Read keys from a file, one a line (a mounted secret, or what `rolloutfleet up` made).

    Raises BadKeyFile where it can't be read, is empty, or holds a key that is too short.
    """
    lines = _read(file, "the admin key file").splitlines()
    return AdminKeys(line.strip() for line in lines if line.strip())


def first_admin_key(file: Path) -> str:
    """The newest key of a file, to call another proxy with; read when needed and not kept. Raises BadKeyFile."""
    lines = _read(file, "the admin key file").split()
    if not lines:
        raise BadKeyFile("there is no admin key")
    return lines[0]


def gateway_key(file: Path | None) -> str | None:
    """The key that gateway and engines ask for; None where no file is named.

    Raises BadKeyFile where it can't be read, is empty, or holds what can't stand in a header.
    """
    if file is None:
        return None
    key = _read(file, "the gateway's key file").strip()
    if not key:
        raise BadKeyFile(f"the gateway's key file {file} is empty")
    if not (key.isascii() and key.isprintable()):
        raise BadKeyFile(f"the gateway's key file {file} holds more than one line of plain letters")
    return key


def own_admin_keys(settings: ProxySettings) -> AdminKeys:
    """The keys of the file that is named; on loopback alone, a key made for this proxy. Raises BadKeyFile."""
    file = admin_key_file(settings)
    if settings.admin_key_file is None:
        if not _is_loopback(settings.host):
            raise BadKeyFile(f"listening on {settings.host} needs an admin key: set admin_key_file to a file with one")
        settings.state_dir.mkdir(parents=True, exist_ok=True)
        if not file.exists():
            file.touch(mode=0o600, exist_ok=False)
            file.write_text(f"rfa-{secrets.token_urlsafe(32)}\n", encoding="utf-8")
        logger.info("the admin key is in %s", file)
    return load_admin_keys(file)


def admin_key_file(settings: ProxySettings) -> Path:
    """The file that is named, else one in the state folder that its owner alone may read."""
    return settings.admin_key_file or settings.state_dir / ADMIN_KEY_FILE


def control_key(file: Path | None) -> str | None:
    """Read at each use; None where there is none that could stand in a header, as while its Secret is made anew."""
    try:
        key = None if file is None else file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return key if key and key.isprintable() else None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _read(file: Path, what: str) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadKeyFile(f"{what} {file} can't be read: {error}") from None
