"""Where a local fleet's tokenizer is on this machine."""

import subprocess
import sys
from pathlib import Path

from rolloutfleet.spec import SIMULATED_MODEL, FleetSpec
from rolloutfleet_operator.local.site import LocalFleetError

_ASK_ENGINE = "from rolloutfleet_engine import model_path; print(model_path())"


def find_model(spec: FleetSpec, *, beside: Path) -> Path | None:
    """The directory with tokenizer or model; None where the hub has it. Relative paths start at `beside`.

    Raises LocalFleetError where it should be here and is not.
    """
    if spec.tokenizer.path is not None:
        return _directory(beside / spec.tokenizer.path, "tokenizer.path")
    found = None
    if spec.tokenizer.hub is None and spec.model == SIMULATED_MODEL:
        found = _shipped_model()
    elif spec.tokenizer.hub is None and (beside / spec.model).is_dir():
        found = (beside / spec.model).resolve()
    if found is None and spec.engine is not None:
        raise LocalFleetError(
            f"simulated engines need a tokenizer on this machine, and model {spec.model!r} is not a directory; "
            f"write `model: {SIMULATED_MODEL}` for the one that ships with them, or give tokenizer.path"
        )
    return found


def _directory(path: Path, field: str) -> Path:
    if not path.is_dir():
        raise LocalFleetError(f"{field}: {path} is not a directory")
    return path.resolve()


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["it ended without a word"])[-1]


def _shipped_model() -> Path:
    # In a session of its own, as the terminal's Ctrl-C is for `up` alone.
    asked = subprocess.run(
        [sys.executable, "-c", _ASK_ENGINE],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        start_new_session=True,
    )
    if asked.returncode != 0:
        raise LocalFleetError(f"the simulated engine can't be used: {_last_line(asked.stderr)}")
    return Path(asked.stdout.strip())
