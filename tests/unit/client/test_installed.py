"""Commands that lack packages say how to install them from where the project itself was installed."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from tests.paths import ROOT

from rolloutfleet import extras, installed
from rolloutfleet.extras import MODULES, NotInstalled, need
from rolloutfleet.installed import command_to_add, how_to_add

NOT_AT_THE_START = {"openai"}


def named(extra: str) -> set[str]:
    """The modules of an extra in pyproject.toml that it has on every system."""
    given = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"][extra]
    plain = [re.split("[=>]", line)[0] for line in given if ";" not in line and "[" not in line]
    names = {name.replace("-", "_") for name in plain}
    nested = [name for line in given if "[" in line for name in line.partition("[")[2].rstrip("]").split(",")]
    return names.union(*map(named, nested)) - NOT_AT_THE_START


@pytest.mark.parametrize("extra", MODULES)
def test_a_command_asks_for_what_its_extra_names(extra: str) -> None:
    assert set(MODULES[extra]) == named(extra)


def test_a_wheel_is_named_by_its_file(tmp_path: Path) -> None:
    wheel = tmp_path / "it's a wheel.whl"
    wheel.touch()
    origin = {"url": wheel.as_uri(), "archive_info": {}}
    assert command_to_add("proxy", origin) == f"pip install 'rolloutfleet[proxy] @ {wheel.as_uri()}'"


def test_a_folder_that_is_used_in_place_stays_so(tmp_path: Path) -> None:
    folder = {"url": tmp_path.as_uri(), "dir_info": {"editable": True}}
    assert command_to_add("local", folder) == f"pip install --editable '{tmp_path}[local]'"
    copied = {"url": tmp_path.as_uri(), "dir_info": {}}
    assert command_to_add("local", copied) == f"pip install 'rolloutfleet[local] @ {tmp_path.as_uri()}'"


def test_a_commit_and_a_page_are_named_by_their_address() -> None:
    vcs = {"vcs": "git", "requested_revision": "main", "commit_id": "0a1b"}
    commit = {"url": "https://example.com/rolloutfleet.git", "vcs_info": vcs}
    expected = "pip install 'rolloutfleet[engine] @ git+https://example.com/rolloutfleet.git@0a1b'"
    assert command_to_add("engine", commit) == expected
    page = {"url": "https://example.com/rolloutfleet-1-py3-none-any.whl", "archive_info": {}}
    assert command_to_add("engine", page) == f"pip install 'rolloutfleet[engine] @ {page['url']}'"


@pytest.mark.parametrize("origin", [None, {"url": "file:///nowhere/rolloutfleet.whl", "archive_info": {}}])
def test_an_origin_that_is_unknown_or_gone_is_left_to_the_reader(
    origin: dict[str, Any] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "_origin", lambda: origin)
    assert how_to_add("proxy") == (
        "install rolloutfleet again from the same source, with the extra 'proxy': pip install 'WHEEL-OR-FOLDER[proxy]'"
    )


def test_need_names_the_first_package_that_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda module: None if module in ("kopf", "msgspec") else object())
    with pytest.raises(NotInstalled, match=r"^kopf is not installed; install the extra 'operator': pip install "):
        need("operator")
