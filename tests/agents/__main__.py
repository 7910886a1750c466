"""`make agents`: every framework's own loop against a fleet; writes the result and docs/frameworks.md."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.agents import page
from tests.agents.frameworks import FRAMEWORKS, Framework
from tests.agents.install import python_of
from tests.agents.running import LoopFailed, fleet_for, run

ASK_VERSION = "import sys; from importlib.metadata import version; print(version(sys.argv[1]))"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit status 0 where every loop that was asked for came out as `frameworks` says."""
    arguments = argparse.ArgumentParser(prog="make agents ARGS=", description=__doc__)
    names = [framework.name for framework in FRAMEWORKS]
    shown = ", ".join(names)
    arguments.add_argument("names", nargs="*", metavar="NAME", help=f"only these, and nothing is written: {shown}")
    asked = arguments.parse_args(argv).names
    if unknown := sorted(set(asked) - set(names)):
        arguments.error(f"no framework is called {unknown[0]}: {shown}")
    chosen = [framework for framework in FRAMEWORKS if not asked or framework.name in asked]
    told = [_tried(framework) for framework in chosen]
    if not asked:
        page.RESULT.parent.mkdir(exist_ok=True)
        page.RESULT.write_text(json.dumps({"frameworks": told}, indent=1) + "\n")
        page.PAGE.write_text(page.text({"frameworks": told}))
    return 0 if all(each["as_expected"] for each in told) else 1


def _tried(framework: Framework) -> dict[str, Any]:
    print(f"{framework.name} …", end=" ", flush=True)
    told: dict[str, Any] = {"name": framework.name, "version": _version(framework), "why": framework.why}
    with tempfile.TemporaryDirectory() as folder, fleet_for(Path(folder), last_call=framework.last_call) as fleet:
        try:
            outcome = run(framework, fleet)
        except LoopFailed as failure:
            print(f"failed\n{failure}", flush=True)
            return {
                **told,
                "outcome": None,
                "failed": str(failure).splitlines()[-1].strip()[:300],
                "as_expected": False,
            }
    as_expected = (outcome.structured, outcome.turns, outcome.rows) == (
        framework.structured,
        framework.turns,
        framework.rows,
    )
    print(f"{outcome.turns} turns, {outcome.rows} rows{'' if as_expected else ', not as expected'}", flush=True)
    return {**told, "outcome": asdict(outcome), "as_expected": as_expected}


def _version(framework: Framework) -> str:
    asked = [str(python_of(framework.name)), "-c", ASK_VERSION, framework.package or framework.name]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
