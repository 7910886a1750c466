"""What a lock file pins."""

import re
from pathlib import Path


def pinned(lock: Path) -> dict[str, set[tuple[str, frozenset[str]]]]:
    """Each distribution in a lock file, with its versions (by Python) and their hashes."""
    pins: dict[str, set[tuple[str, frozenset[str]]]] = {}
    blocks = re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)(.*?)(?=^[a-z0-9#]|\Z)", lock.read_text(), re.MULTILINE | re.DOTALL)
    for name, version, rest in blocks:
        pins.setdefault(name, set()).add((version, frozenset(re.findall(r"sha256:\w{64}", rest))))
    return pins
