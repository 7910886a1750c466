"""Who is calling: the admin, or one session by its key. Promise 10."""

import hashlib
import hmac
import secrets
from collections.abc import Mapping
from pathlib import Path

MINIMUM_KEY = 16
"""Characters of an admin key at the least."""


class BadAdminKey(Exception):
    """The admin key can't be used; the message says why and what to do."""


def presented_key(headers: Mapping[str, str]) -> str | None:
    """The key that a call carries, in `Authorization: Bearer` or in `x-api-key`."""
    authorization = headers.get("authorization", "")
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer" and value.strip():
        return value.strip()
    return headers.get("x-api-key") or None


def key_hash(key: str) -> bytes:
    """What the store keeps of a key. Keys are random and long, so one round of SHA-256 is enough."""
    return hashlib.sha256(key.encode("utf-8", "replace")).digest()


class AdminKey:
    """The admin's key, held as a hash and compared in constant time."""

    def __init__(self, key: str) -> None:
        if len(key) < MINIMUM_KEY:
            raise BadAdminKey(f"the admin key has {len(key)} characters; it needs at least {MINIMUM_KEY}")
        self._hash = key_hash(key)

    def matches(self, key: str | None) -> bool:
        return key is not None and hmac.compare_digest(self._hash, key_hash(key))


def load_admin_key(file: Path) -> AdminKey:
    """Read the key from its file (a mounted secret, or what `rolloutfleet up` made).

    Raises BadAdminKey where it can't be read or is too short.
    """
    try:
        return AdminKey(file.read_text(encoding="utf-8").strip())
    except (OSError, UnicodeDecodeError) as error:
        raise BadAdminKey(f"the admin key file {file} can't be read: {error}") from None


def make_admin_key(file: Path) -> AdminKey:
    """Make a random key in a new file that its owner alone may read."""
    key = f"rfa-{secrets.token_urlsafe(32)}"
    file.touch(mode=0o600, exist_ok=False)
    file.write_text(key + "\n", encoding="utf-8")
    return AdminKey(key)
