"""Where the real SGLang and its models stand, and whether they are whole.

They stand outside the clone, in the user's cache, because they take about 10 GB: all clones whose lock, driver
stand-in and model script are the same share them. Two variables name an environment of the user's own
instead, for a GPU: see CONTRIBUTING.md.
"""

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import PATIENCE
from toolchain.cache import cache_root, digest_of

SGLANG_VERSION = "0.5.23"

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[2]
LOCK = HERE / "requirements.lock"
DRIVER_SOURCE = HERE / "libcuda.c"
MODEL_SCRIPT = HERE / "build_model.py"
SHIPPED_MODEL = REPOSITORY / "engine" / "rolloutfleet_engine" / "model"

ENVIRONMENT_VARIABLE = "ROLLOUTFLEET_SGLANG"
"""Names an environment that has SGLang already; its folder `models` holds the models."""
OPTIONS_VARIABLE = "ROLLOUTFLEET_SGLANG_OPTIONS"
"""What SGLang is started with there, in place of what makes it run on a CPU."""


@dataclass(frozen=True, slots=True)
class Installed:
    """The real engine, once it is installed."""

    environment: Path
    models: Path
    options: tuple[str, ...] | None = None
    """For SGLang in an environment that the user supplied; None where it runs on the CPU."""

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    @property
    def driver(self) -> Path:
        """The folder with the stand-in for libcuda.so.1, for LD_LIBRARY_PATH."""
        return self.environment / "driver"

    def model(self, name: str) -> Path:
        return self.models / name


def places() -> Installed:
    environment = cache_root() / f"sglang-{SGLANG_VERSION}-{digest_of(LOCK, DRIVER_SOURCE)}"
    shipped = sorted(path for path in SHIPPED_MODEL.iterdir() if path.is_file())
    models = cache_root() / f"tiny-qwen3-{digest_of(LOCK, MODEL_SCRIPT, *shipped)}"
    return Installed(environment=environment, models=models)


def find(variables: Mapping[str, str] = os.environ) -> Installed | None:
    """The engine that the user supplied, else the installed one; None where any part of the latter is missing.

    Raises SystemExit where any part of a supplied one is missing.
    """
    if folder := variables.get(ENVIRONMENT_VARIABLE):
        return _supplied(Path(folder), variables.get(OPTIONS_VARIABLE, ""))
    installed = places()
    return installed if environment_is_whole(installed) and installed.models.is_dir() else None


def environment_is_whole(installed: Installed) -> bool:
    # The interpreter is asked too: it breaks when the Python below it is removed or upgraded away.
    return stamp_of(installed).is_file() and answers(installed.python)


def stamp_of(installed: Installed) -> Path:
    return installed.environment / ".complete"


def answers(python: Path) -> bool:
    try:
        return subprocess.run([python, "-c", ""], capture_output=True, timeout=PATIENCE).returncode == 0
    except OSError:
        return False


def _supplied(environment: Path, options: str) -> Installed:
    found = Installed(environment=environment, models=environment / "models", options=tuple(shlex.split(options)))
    for part in (found.python, found.model("first"), found.model("second")):
        if not part.exists():
            raise SystemExit(f"{ENVIRONMENT_VARIABLE} is {environment}, and there is no {part}")
    return found
