"""A comparison, in the environment of its trainer: `run NAME PACKAGE…`; the last line that it prints is the result."""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType


def main(name: str, packages: Sequence[str]) -> int:
    own_tests()
    comparison = import_module(f"examples.trainers.classes.{name}")
    found = comparison.compare(import_module("examples.trainers.classes.rollouts").fixed())
    versions = {package: version(package) for package in packages}
    beside = {package: version(package) for package in ("torch", "pydantic", "numpy")}
    told = {"module": name, "packages": versions, "beside": beside, "how": comparison.HOW}
    print(json.dumps({**told, **asdict(found), "holds": found.holds}))
    return 0 if found.holds else 1


def own_tests() -> None:
    """Let `tests` be this repository's: verl installs a package of that name."""
    module = ModuleType("tests")
    module.__path__ = [str(Path(__file__).parents[3] / "tests")]
    sys.modules["tests"] = module


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
