"""Names that carry their owner: a session, group, lease, key or own shard says which proxy and which store made it."""

import os
import re
import secrets
from dataclasses import dataclass
from hashlib import blake2b, sha256

SESSION = "s"
GROUP = "g"
LEASE = "l"
TENSOR = "t"
"""A shard that a proxy named; those that users name say nothing of their owner."""
_KEY = "rf"

_NAME = re.compile(r"^([sglt])(0|[1-9]\d{0,5})-([0-9a-f]{12})-(?:[0-9a-f]{16}|[0-9a-f]{32})$")
_SECRET = re.compile(r"^rf-(0|[1-9]\d{0,5})-([0-9a-f]{12})-[A-Za-z0-9_-]{43}$")


@dataclass(frozen=True, slots=True)
class Owner:
    """The proxy and store that a name belongs to."""

    ordinal: int
    store_id: str
    """12 hex digits."""

    def name(self, kind: str) -> str:
        """A fresh name of this kind: `s0-<store>-<16 hex digits>`."""
        return f"{kind}{self.ordinal}-{self.store_id}-{secrets.token_hex(8)}"

    def derived(self, kind: str, *parts: str | int) -> str:
        """The name of this kind that follows from the parts: the same ones always make the same."""
        digest = blake2b("\0".join(map(str, parts)).encode(), digest_size=16).hexdigest()
        return f"{kind}{self.ordinal}-{self.store_id}-{digest}"

    def key(self) -> str:
        """A fresh session key with 256 random bits: `rf-0-<store>-<secret>`."""
        return f"{_KEY}-{self.ordinal}-{self.store_id}-{secrets.token_urlsafe(32)}"


def owner_of_name(name: str, *, kind: str) -> Owner | None:
    """Who owns the session, group, lease or shard of this name; None where it is no name of ours of that kind."""
    found = _NAME.match(name)
    if found is None or found[1] != kind:
        return None
    return Owner(int(found[2]), found[3])


def owner_of_key(key: str) -> Owner | None:
    """Who owns the session with this key; None where it is not of a session key's form."""
    found = _SECRET.match(key)
    return Owner(int(found[1]), found[2]) if found else None


def key_hash(key: str) -> bytes:
    """What the store keeps of a key. Keys are random and long, so one round of SHA-256 is enough."""
    return sha256(key.encode("utf-8", "replace")).digest()


_RANDOM_BYTES = 12
_AT_ONCE = 256
_random: list[str] = []
os.register_at_fork(after_in_child=_random.clear)


def random_hex() -> str:
    """24 random hex digits, for names that every call makes. The system is asked for many at once: each time it is
    asked, other threads may take the interpreter."""
    try:
        return _random.pop()
    except IndexError:
        block = secrets.token_hex(_RANDOM_BYTES * _AT_ONCE)
        digits = 2 * _RANDOM_BYTES
        _random.extend(block[start : start + digits] for start in range(digits, len(block), digits))
        return block[:digits]
