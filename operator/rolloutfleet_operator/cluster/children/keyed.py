"""Servers of SGLang's family take a key by flag only, and flags are for everybody to read.

So where there is a key, Python starts the module with the flag added within the process, from a mounted file.
"""

from typing import Final

from rolloutfleet_operator.cluster.children.names import ENGINE_KEY_FILE, ENGINE_KEY_PATH
from rolloutfleet_operator.cluster.children.pods import Manifest

VOLUME: Final = "engine-key"
_START: Final = """\
import runpy, sys
from pathlib import Path
module, key = sys.argv[1], Path(sys.argv[2]).read_text().strip()
sys.argv = [module, *sys.argv[3:], "--api-key", key]
runpy.run_module(module, run_name="__main__")
"""


def command(module: str) -> list[str]:
    """Starts `module` with the key; its other arguments follow as the container's args."""
    return ["python3", "-c", _START, module, f"{ENGINE_KEY_PATH}/{ENGINE_KEY_FILE}"]


def volume(secret: str) -> Manifest:
    return {"name": VOLUME, "secret": {"secretName": secret}}


def mount() -> Manifest:
    return {"name": VOLUME, "mountPath": ENGINE_KEY_PATH, "readOnly": True}
