"""Rows against trainers' own classes: `make trainers`, or `python -m examples.trainers.classes` with SGLang installed.

Each trainer has an environment of its own, made where it is not there. But for TRL it holds the package alone; PyTorch
and what else that imports is SGLang's. There a fixed set of rollouts is converted by `rolloutfleet.formats` and
compared with the rows.
"""

import argparse
import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from benchmarks.rigs.machine import revision
from examples.real_fleet import ROOT, command_of, environment_of
from rich.console import Console
from tests.engine.sglang.places import Installed, find
from toolchain import environments
from toolchain.cache import digest_of

LOCKS: Final = Path(__file__).parents[1] / "environments"
RESULT: Final = Path(__file__).parents[1] / "results" / "classes.json"
FORMATS: Final = ROOT / "client" / "rolloutfleet" / "formats"
ENVIRONMENTS: Final = {"tinker": "tinker", "verl": "verl", "areal": "areal", "sft": "trl"}
"""By module of rolloutfleet.formats."""
NOT_COMPARED: Final = {
    "slime": "neither slime nor miles is on the package index (`slime` there is another package): a stand-in in tests",
    "trl": "by `make trl`, which compares each row that TRL trains on",
}
"""The other modules of rolloutfleet.formats, and why."""

console = Console(highlight=False)


class Failed(Exception):
    """A comparison came to no end."""


def main() -> int:
    asked = _arguments()
    installed = find()
    if installed is None:
        console.print("[red]The real SGLang is not installed.[/] `make trainers` installs it first (10 GB).")
        return 1
    try:
        found = [_compared(name, installed) for name in ([asked.only] if asked.only else ENVIRONMENTS)]
    except (environments.NotInstalled, Failed) as error:
        console.print(f"[red]{error}[/]")
        return 1
    for each in found:
        packages = " ".join(f"{package} {version}" for package, version in each["packages"].items())
        console.print(f"{packages}: {each['equal']} of {each['rows']} rows equal, {each['beyond']} beyond them")
    if not all(each["holds"] for each in found):
        return 1
    if not asked.only:
        told: dict[str, Any] = {"commit": revision(), "formats": digest_of(FORMATS), "date": time.strftime("%Y-%m-%d")}
        told |= {"python": sys.version.split()[0], "compared": found, "not_compared": NOT_COMPARED}
        RESULT.write_text(json.dumps(told, indent=1) + "\n")
        console.print(f"written to {RESULT.relative_to(ROOT)}")
    return 0


def packages_of(name: str) -> list[str]:
    """The packages that a module's environment is made for."""
    return re.findall(r"^([\w-]+)==", (LOCKS / f"{ENVIRONMENTS[name]}.in").read_text(), re.MULTILINE)


def _compared(name: str, installed: Installed) -> dict[str, Any]:
    console.print(f"{name} …")
    python = environments.python_of(LOCKS / f"{ENVIRONMENTS[name]}.lock", kind="trainers")
    command = command_of(
        python,
        "examples.trainers.classes.run",
        [name, *packages_of(name)],
        beside=installed.environment.glob("lib/python*/site-packages"),
    )
    done = subprocess.run(command, cwd=ROOT, env=environment_of(installed), capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    if not lines or not lines[-1].startswith("{"):
        raise Failed(f"{name}: {done.stderr.strip()[-2000:]}")
    result: dict[str, Any] = json.loads(lines[-1])
    return result


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make trainers ARGS=", description=__doc__.partition("\n")[0])
    parser.add_argument("--only", choices=ENVIRONMENTS, help="this one, and nothing is written")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
