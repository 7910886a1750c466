"""Whether what an extra of the distribution takes is installed."""

from importlib.util import find_spec
from typing import Final

_ENGINE: Final = ("httptools", "llguidance", "msgspec", "tokenizers", "uvicorn")
_INSPECT: Final = ("httptools", "jinja2", "starlette", "uvicorn")
_PROXY: Final = (
    "aiohttp",
    "fastapi",
    "httptools",
    "huggingface_hub",
    "jinja2",
    "msgspec",
    "prometheus_client",
    "psutil",
    "renderers",
    "tokenizers",
    "uvicorn",
)

MODULES: Final = {
    "proxy": _PROXY,
    "engine": _ENGINE,
    "inspect": _INSPECT,
    "operator": ("aiohttp", "kopf", "kubernetes", "msgspec", "prometheus_client"),
    "local": (*_PROXY, *_ENGINE, *_INSPECT, "setproctitle", "smg"),
}
"""The modules without which a command of this extra can't start, on any system."""


class NotInstalled(Exception):
    """A package of an extra is missing; the message has the command that installs it."""


def need(extra: str) -> None:
    """Raises NotInstalled where a package of this extra is missing."""
    for module in MODULES[extra]:
        if find_spec(module) is None:
            # Only here: it takes 2 MB, and a proxy's parent process stays small.
            from rolloutfleet.installed import how_to_add

            raise NotInstalled(f"{module} is not installed; {how_to_add(extra)}")
