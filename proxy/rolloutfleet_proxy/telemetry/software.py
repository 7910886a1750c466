"""The versions of what a proxy stands on."""

import platform
import sqlite3
from functools import cache
from importlib.metadata import version
from typing import Final

from rolloutfleet.installed import own_version

_PACKAGES: Final = ("renderers", "tokenizers", "aiohttp", "uvicorn")


@cache
def versions() -> dict[str, str]:
    """By name."""
    return {
        "version": own_version(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in _PACKAGES},
    }
