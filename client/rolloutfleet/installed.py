"""Which release of the project is installed, and where it came from."""

import json
import shlex
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


def own_version() -> str:
    """`0` where it runs from a folder of sources that is not installed."""
    try:
        return version("rolloutfleet")
    except PackageNotFoundError:
        return "0"


def how_to_add(extra: str) -> str:
    """`install the extra 'proxy': pip install 'rolloutfleet[proxy] @ file:///…'`

    From where this was installed: by the name alone an index would choose, and may have another project under it.
    """
    command = command_to_add(extra, _origin())
    if command is None:
        again = f"pip install 'WHEEL-OR-FOLDER[{extra}]'"
        return f"install rolloutfleet again from the same source, with the extra {extra!r}: {again}"
    return f"install the extra {extra!r}: {command}"


def command_to_add(extra: str, origin: dict[str, Any] | None) -> str | None:
    """The command for a distribution of this origin (as `direct_url.json` has it); None where it is unknown or gone."""
    if origin is None:
        return None
    url = origin["url"]
    if "vcs_info" in origin:
        url = f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    elif (parts := urlsplit(url)).scheme == "file":
        path = Path(url2pathname(parts.path))
        if not path.exists():
            return None
        if origin.get("dir_info", {}).get("editable"):
            return f"pip install --editable {shlex.quote(f'{path}[{extra}]')}"
    return f"pip install {shlex.quote(f'rolloutfleet[{extra}] @ {url}')}"


def _origin() -> dict[str, Any] | None:
    """None where it was chosen by its name, or runs from a folder of sources that is not installed."""
    try:
        said = distribution("rolloutfleet").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    return None if said is None else json.loads(said)
