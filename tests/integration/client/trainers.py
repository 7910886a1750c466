"""Environments of trainers with our base dependencies, resolved by metadata of an index; nothing is installed."""

import contextlib
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.integration.client.environments import UV
from tests.paths import ROOT
from tests.waiting import START
from toolchain.cache import cache_root, digest_of
from toolchain.environments import NotInstalled

RESOLVED_ON: Final = "2026-11-26"
"""Nothing newer is taken, so that the answer stays the same."""
TRAINERS: Final[Mapping[str, str]] = {
    # The longest first.
    "areal==1.0.4": "3.11",
    "verl==0.8.0": "3.11",
    "verl==0.9.1": "3.11",
    "openrlhf==0.11.2": "3.11",
    "harbor==0.26.0": "3.12",
    "skyrl==0.4.0": "3.12",
    "verifiers==0.4.0": "3.11",
    "trl==1.16.0": "3.11",
    "tinker==0.38.0": "3.11",
}
"""The newest of each on that day, and the lowest Python that it and we run on."""

_REFUSED: Final = re.compile(r"Failed to fetch|Failed to download|hint: An index")


class Unresolvable(Exception):
    """No versions of a trainer's dependencies and ours go together; the message says why."""


def fetch(requirement: str) -> None:
    """Resolve once for all tests. Raises NotInstalled where the index refuses to answer."""
    with contextlib.suppress(Unresolvable):
        resolved(requirement)


def resolved(requirement: str) -> dict[str, str]:
    """Versions by package of an environment on Linux that has the trainer and our base.

    Raises Unresolvable, and NotInstalled where the index refuses to answer.
    """
    base = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    parts = (*base["dependencies"], base["requires-python"], requirement, TRAINERS[requirement], RESOLVED_ON)
    file = cache_root() / f"beside-{requirement.replace('==', '-')}-{digest_of(*parts)}.txt"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        _resolve(requirement, draft)
        draft.replace(file)
    return dict(line.split("==") for line in re.findall(r"^[^\s;#]+==[^\s;]+", file.read_text(), re.MULTILINE))


def _resolve(requirement: str, result: Path) -> None:
    plain = ("--quiet", "--no-header", "--no-annotate")
    machine = ("--python", sys.executable, "--no-python-downloads", "--python-platform", "x86_64-manylinux_2_28")
    when = ("--python-version", TRAINERS[requirement], "--exclude-newer", f"{RESOLVED_ON}T00:00:00Z")
    files = ("--output-file", result, "pyproject.toml", "-")
    command: list[str | Path] = [UV, "pip", "compile", *plain, *machine, *when, *files]
    try:
        done = subprocess.run(
            command, cwd=ROOT, input=requirement, capture_output=True, text=True, timeout=START, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{requirement} could not be resolved: no answer in {START:g} s") from None
    if done.returncode:
        said = done.stderr.strip()
        if _REFUSED.search(said):
            raise NotInstalled(f"{requirement} could not be resolved: {said}")
        raise Unresolvable(said)
