"""Which sessions are kept as a copy once they are trained. Pure."""

from hashlib import blake2b
from typing import Final

_BYTES: Final = 8


def is_drawn(session_id: str, fraction: float) -> bool:
    """Whether a session is among this share of all; of a larger share it is one as well."""
    digest = blake2b(session_id.encode(), digest_size=_BYTES).digest()
    return int.from_bytes(digest, "big") < fraction * (1 << 8 * _BYTES)
