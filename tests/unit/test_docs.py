"""The documentation says what the code does, as far as a cheap look can tell."""

import ast
import importlib
import json
import pkgutil
import re
from itertools import accumulate
from pathlib import Path
from textwrap import dedent

import msgspec
import pytest
import yaml
from fastapi import APIRouter
from openai import _constants as openai_constants
from starlette.routing import Route
from tests.paths import ROOT
from tests.unit.proxy.telemetry.test_metrics import declared_metrics

from rolloutfleet import errors, settings_docs
from rolloutfleet.spec import KIND, RolloutFleet
from rolloutfleet_proxy import control
from rolloutfleet_proxy.dialects.openai_chat.request import _ChatBody
from rolloutfleet_proxy.dialects.registry import call_paths, count_paths, dialect_call, greeting_paths
from rolloutfleet_proxy.engine.evidence import Reason
from rolloutfleet_proxy.telemetry.metrics import Metrics

PROXY = ROOT / "proxy" / "rolloutfleet_proxy"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "benchmarks" / "README.md"])
API, CAPTURE, ARCHITECTURE = ((ROOT / "docs" / f"{name}.md").read_text() for name in ("api", "capture", "architecture"))

CHAT_CALLS = {f"POST {re.sub(r'{[a-z_]+}', '{id}', path)}" for _, path in (*call_paths(), *count_paths())}
GREETINGS = {f"HEAD {re.sub(r'{[a-z_]+}', '{id}', path)}" for path in greeting_paths()}
CODE = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)
NOT_TOLD = {"__init__", "__main__", "testing"}
"""Modules that a reader need not be told of."""


def by_name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def code_blocks(language: str) -> list[tuple[str, str]]:
    """(page, text) of every block in a language."""
    found = [(by_name(page), *block) for page in PAGES for block in CODE.findall(page.read_text())]
    return [(page, text) for page, each, text in found if each == language]


def test_every_call_of_the_api_is_written_down_and_no_other() -> None:
    names = [f"{control.__name__}.{found.name}" for found in pkgutil.iter_modules(control.__path__)]
    modules = [importlib.import_module(name) for name in names]
    routes = {
        f"{method} {re.sub(r'{[a-z_]+(:path)?}', '{id}', route.path)}"
        for module in modules
        for route in getattr(module, "router", APIRouter()).routes
        if isinstance(route, Route) and route.include_in_schema
        for method in route.methods or ()
    }
    told = {f"{method} {path}" for method, path in re.findall(r"`(GET|HEAD|PUT|POST|DELETE) (/[^\s`]*)`", API)}
    assert told == routes | CHAT_CALLS | GREETINGS, "the calls in docs/api.md"
    for call in CHAT_CALLS:
        method, path = call.split()
        assert dialect_call({"type": "http", "method": method, "path": path.format(id="s0"), "headers": []})


def test_every_error_code_is_written_down() -> None:
    codes = {value for name, value in vars(errors).items() if name.isupper()}
    assert {code for code in codes if f"`{code}`" not in API} == set(), "these codes are not in docs/api.md"


def test_the_table_of_metrics_is_what_is_declared() -> None:
    rows = re.findall(r"^\| `(rolloutfleet_\w+)` \| ((?:`\w+`(?:, )?)*)[^|]*\| (histogram:)?", API, re.MULTILINE)
    told = {(name, frozenset(re.findall(r"\w+", labels)), bool(histogram)) for name, labels, histogram in rows}
    declared = {(each.name, each.labels, each.type == "histogram") for each in declared_metrics(Metrics())}
    assert told == declared, "the table of metrics in docs/api.md"


def test_every_chat_parameter_is_written_down() -> None:
    names = {field.encode_name for field in msgspec.structs.fields(_ChatBody)}
    untold = {name for name in names if not re.search(rf"`{name}\b", CAPTURE)}
    assert untold == set(), "these parameters are not in docs/capture.md"


def test_every_reason_to_refuse_a_reply_is_written_down() -> None:
    untold = {reason for name, reason in vars(Reason).items() if name.isupper() and f"`{reason}`" not in CAPTURE}
    assert untold == set(), "these reasons are not in docs/capture.md"


def test_every_file_of_the_proxy_has_its_place_in_the_architecture() -> None:
    there = {str(file.relative_to(PROXY)) for file in PROXY.rglob("*.py") if file.stem not in NOT_TOLD}
    told = set(re.findall(r"`([\w/]+\.py)`", ARCHITECTURE))
    told -= {name for name in told if (ROOT / name).is_file() or (ROOT / "client" / name).is_file()}
    in_control = {name for name in told if name.startswith("control/")}
    assert {name for name in there if not name.startswith("control/")} == told - in_control, "docs/architecture.md"
    assert in_control <= there


def test_every_file_that_a_task_names_is_there() -> None:
    tasks = (ROOT / "CONTRIBUTING.md").read_text().partition("## Tasks")[2]
    named = set(re.findall(r"`([\w/]+\.py)`", tasks))
    assert "store/trajectories.py" in named
    folders = (ROOT, PROXY, ROOT / "operator" / "rolloutfleet_operator", ROOT / "tests/unit/operator/policy")
    assert {name for name in named if not any((folder / name).is_file() for folder in folders)} == set()


def test_the_page_of_settings_is_up_to_date() -> None:
    written = (ROOT / "docs" / "settings.md").read_text()
    assert written == settings_docs.page(), "python -m rolloutfleet.settings_docs > docs/settings.md"


def test_the_waits_of_an_sdk_are_the_sdks_own() -> None:
    delay, longest = openai_constants.INITIAL_RETRY_DELAY, openai_constants.MAX_RETRY_DELAY
    waits = list(accumulate(0.75 * min(delay * 2**retry, longest) for retry in range(10)))
    table = re.search(r"\| `max_retries` \|(.*)\|\n\|[-|]+\|\n\| seconds \|(.*)\|", CAPTURE)
    assert table is not None
    retries, seconds = ([float(cell.split()[0]) for cell in row.split("|")] for row in table.groups())
    assert seconds == [pytest.approx(waits[int(retry) - 1], abs=0.051) for retry in retries]


def test_glue_for_trl_is_the_examples_and_takes_fifteen_lines() -> None:
    example = (ROOT / "examples" / "trainers" / "trl" / "train.py").read_text()
    found = re.search(r"# Between TRL and the fleet: [^\n]*\n(.*) {4}# TRL, as ever", example, re.DOTALL)
    assert found is not None
    glue = dedent(found[1]).strip()
    begin = "with ExitStack() as training, ExitStack() as evaluation:\n"
    assert begin in example
    assert f"```python\n{glue}\n\n{begin}" in (ROOT / "docs" / "trainers.md").read_text()
    assert len([line for line in (glue + begin).splitlines() if line.strip()]) <= 15


def test_each_trainer_begins_with_what_was_not_run() -> None:
    page = (ROOT / "docs" / "trainers.md").read_text()
    sections = re.findall(r"^## (.+)\n\n(.*(?:\n.+)*)", page, re.MULTILINE)
    trainers = {name: first for name, first in sections if f"(#{name.lower().replace(' ', '-')})" in page}
    del trainers["Write your own in forty lines"]
    assert len(trainers) == 6
    assert [name for name, first in trainers.items() if "not run" not in first.lower()] == []


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        if target.startswith(("http://", "https://")):
            continue
        file, _, anchor = target.partition("#")
        there = page if not file else (page.parent / file).resolve()
        assert there.exists(), target
        if anchor:
            assert anchor in anchors(there.read_text()), target


def anchors(text: str) -> set[str]:
    """What a forge makes of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", CODE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=by_name)
def test_files_that_are_named_are_there(page: Path) -> None:
    named = re.findall(r"`((?:tests|examples|docs|benchmarks|scripts)/[\w./-]+\.\w+)`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_examples_can_be_read() -> None:
    for page, text in code_blocks("python"):
        ast.parse(text, filename=page)
    for _, text in code_blocks("json"):
        json.loads(text)
    for _, text in code_blocks("yaml"):
        example = yaml.safe_load(text)
        if example.get("kind") == KIND:
            RolloutFleet.model_validate(example, by_alias=True, by_name=False)
