"""What the last full run on a cluster showed, scenario by scenario: `e2e/results/latest.json`.

A scenario is a test of e2e/, without its parameters: `test_cluster.py::test_every_node_is_ready`.
"""

import ast
import json
import subprocess
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import pytest
from pydantic import BaseModel, TypeAdapter

HERE: Final = Path(__file__).parent
LATEST: Final = HERE / "results" / "latest.json"


class Result(BaseModel):
    scenario: str
    passed: bool
    seconds: float
    commit: str
    """What was checked out; with `+` where it was changed."""
    runs: int = 1
    """At that commit, one after the other, since one failed."""

    @property
    def file(self) -> str:
        """The file of its test."""
        return self.scenario.partition("::")[0]


_RESULTS: Final = TypeAdapter(list[Result])


def scenarios() -> list[str]:
    """All there are."""
    return list(_marks())


def core() -> list[str]:
    """Those not marked `full`: CI runs them."""
    return [scenario for scenario, marks in _marks().items() if "pytest.mark.full" not in marks]


def is_marked(scenario: str, mark: str) -> bool:
    """True where the scenario has this mark: its own, or at the top of its file (`pytestmark`)."""
    return f"pytest.mark.{mark}" in _marks()[scenario]


@cache
def _marks() -> dict[str, str]:
    """Marks of each scenario, as its source has them: of its file and its own, those of single parameters left out."""
    found = {}
    for file in sorted(HERE.glob("test_*.py")):
        nodes = ast.parse(file.read_text()).body
        assigned = [node for node in nodes if isinstance(node, ast.Assign)]
        of_file = [node.value for node in assigned if ast.unparse(node.targets[0]) == "pytestmark"]
        for node in nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                own = [each for each in node.decorator_list if not isinstance(each, ast.Call)]
                found[f"{file.name}::{node.name}"] = " ".join(map(ast.unparse, (*of_file, *own)))
    return found


def of_report(report: Path, file: str, *, commit: str) -> list[Result]:
    """The results in pytest's JUnit report of one file. Times add up over a scenario's parameters."""
    found: dict[str, Result] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        of_class = [part for part in case.get("classname", "").split(".")[-1:] if part[:1].isupper()]
        scenario = "::".join([file, *of_class, case.get("name", "").partition("[")[0]])
        failed = any(child.tag in ("failure", "error", "skipped") for child in case)
        seconds = float(case.get("time", "0"))
        earlier = found.get(scenario)
        found[scenario] = Result(
            scenario=scenario,
            passed=not failed and (earlier is None or earlier.passed),
            seconds=round(seconds + (earlier.seconds if earlier else 0), 1),
            commit=commit,
        )
    return list(found.values())


def of_run(report: Path, scenario: str, *, status: int, commit: str) -> list[Result]:
    """Results of pytest's run of a scenario. Where it ended badly and no test says so, the scenario has failed."""
    found = of_report(report, scenario.partition("::")[0], commit=commit) if report.exists() else []
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and all(
        result.passed for result in found
    ):
        found = [Result(scenario=scenario, passed=False, seconds=0, commit=commit)]
    return found


def merged(earlier: Iterable[Result], newer: Iterable[Result], *, there: Sequence[str]) -> list[Result]:
    """The newest result of each scenario that still exists, in order."""
    by_name = {result.scenario: result for result in earlier}
    for result in newer:
        before = by_name.get(result.scenario)
        if before is not None and before.passed and result.passed and before.commit == result.commit:
            result = result.model_copy(update={"runs": before.runs + 1})
        by_name[result.scenario] = result
    return [by_name[scenario] for scenario in there if scenario in by_name]


def lacking(results: Iterable[Result], *, there: Sequence[str], runs: int = 1) -> list[str]:
    """Scenarios without a result of so many runs, or with a bad one."""
    passed = {result.scenario for result in results if result.passed and result.runs >= runs}
    return [scenario for scenario in there if scenario not in passed]


def read(path: Path = LATEST) -> list[Result]:
    return _RESULTS.validate_json(path.read_bytes()) if path.exists() else []


def write(results: Sequence[Result], path: Path = LATEST) -> None:
    path.parent.mkdir(exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(_RESULTS.dump_python(list(results)), indent=1) + "\n")
    unfinished.replace(path)


def add(newer: Iterable[Result], path: Path = LATEST) -> None:
    """To what is written there already, in place of older results of the same scenarios."""
    write(merged(read(path), newer, there=scenarios()), path)


def checked_out() -> str:
    """The commit, with `+` where files are changed, results left out."""
    hash_of_it = _git("rev-parse", "--short=12", "HEAD")
    changed = _git("status", "--porcelain", "--untracked-files=all", "--", ".", ":(exclude,glob)**/results/**")
    return hash_of_it + "+" * bool(changed)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=HERE.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()
