"""What sessions, groups and turns are called in paths. Pure.

A fleet's own ids are safe there and stay as they are. What a file holds may be any text, so that has a name made of it.
"""

import hashlib
import re
from typing import Final

_SAFE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}")
"""Without capitals: on some disks a file of one name is that of the other, too."""
_SESSION: Final = re.compile(r"s(0|[1-9]\d{0,5})-[0-9a-f]{12}-[0-9a-f]{16}")


def safe_name(text: str) -> str:
    """The text itself, where it means nothing to a path or a shell and has no capitals; else a digest of it."""
    return text if _SAFE.fullmatch(text) else digest_name(text)


def digest_name(*texts: str) -> str:
    """The same for the same texts, and for no others."""
    said = "\0".join(f"{len(text)}:{text}" for text in texts)
    return f"x{hashlib.sha256(said.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def is_name(text: str) -> bool:
    """Whether one of these can be called so."""
    return _SAFE.fullmatch(text) is not None


def is_session_id(text: str) -> bool:
    """Whether a fleet can have made this id."""
    return _SESSION.fullmatch(text) is not None
