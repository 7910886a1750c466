"""Command lines of the programs that a fleet runs.

Gateway and engines take their keys by flag only, and flags are for everybody to read. So where there is a key, Python
starts the module with the flag added within the process, from a file.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath
from typing import Final

from rolloutfleet.spec import SimulatedSpec, cues_json

_START: Final = """\
import json, runpy, sys
from pathlib import Path
module, keys, *flags = sys.argv[1:]
for flag, prefix, file in json.loads(keys):
    flags += [flag, prefix + Path(file).read_text().strip()]
sys.argv = [module, *flags]
runpy.run_module(module, run_name="__main__")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFlag:
    """A flag whose value is `prefix` and what stands in `file`."""

    flag: str
    file: PurePath
    prefix: str = ""


def module(python: str, name: str, keys: Sequence[KeyFlag] = ()) -> list[str]:
    """Starts the module of that name with the keys; its other arguments follow."""
    if not keys:
        return [python, "-m", name]
    return [python, "-c", _START, name, json.dumps([[key.flag, key.prefix, str(key.file)] for key in keys])]


def flags(given: Mapping[str, object]) -> list[str]:
    """The words of a command line; None stands for a flag without a value."""
    words: list[str] = []
    for flag, value in given.items():
        words.extend([flag] if value is None else [flag, str(value)])
    return words


def simulated_engine(asked: SimulatedSpec, *, host: str, port: int, model: str, index: int = 0) -> list[str]:
    """The flags of a simulated engine; with another `index` it answers otherwise."""
    return flags(
        {
            "--host": host,
            "--port": port,
            "--served-model-name": model,
            "--latency": asked.latency,
            "--token-latency": asked.token_latency,
            "--noncanonical": asked.noncanonical,
            "--seed": asked.seed + index,
            **({"--cues": cues_json(asked.cues)} if asked.cues else {}),
        }
    )
