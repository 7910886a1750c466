"""Calls that carry an Idempotency-Key, which can be made again without being done again."""

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from rolloutfleet.wire import IDEMPOTENCY_KEY_HEADER
from rolloutfleet_proxy.domain.errors import InvalidRequest

KEY_LIMIT: Final = 255
"""Characters of a key."""


@dataclass(frozen=True, slots=True)
class KeyedCall:
    """A call with an Idempotency-Key."""

    scope: str
    """Which endpoint, of what, and by whom: the same key elsewhere is another call."""
    key: str
    body: bytes
    """A digest of what was asked."""


def keyed_call(key: str | None, *, scope: str, body: bytes) -> KeyedCall | None:
    """The call that a header's value makes of `body`, None where there is no header.

    Raises InvalidRequest for a key that is empty, longer than 255 characters, or not printable ASCII.
    """
    if key is None:
        return None
    if not 1 <= len(key) <= KEY_LIMIT or not all(" " <= letter <= "~" for letter in key):
        raise InvalidRequest(
            f"An {IDEMPOTENCY_KEY_HEADER} has 1 to {KEY_LIMIT} printable ASCII characters.",
            param=IDEMPOTENCY_KEY_HEADER,
        )
    return KeyedCall(scope, key, blake2b(body, digest_size=16).digest())
