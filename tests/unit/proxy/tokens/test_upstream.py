"""Defects of `renderers` that `docs/dev/upstream.md` tells are still there, each by its reproduction: where one is
mended, what is done about it here can go."""

from __future__ import annotations

import ast
import re
import tomllib
from importlib.metadata import version
from typing import Any

import pytest
from tests.paths import ROOT

PAGE = (ROOT / "docs/dev/upstream.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
HELPERS = [block for block in BLOCKS if "\ndef " in block]
REPRODUCTIONS = [block for block in BLOCKS if block not in HELPERS]


@pytest.mark.parametrize("block", REPRODUCTIONS, ids=range(len(REPRODUCTIONS)))
def test_a_defect_is_reproduced(block: str) -> None:
    known: dict[str, Any] = {}
    for helper in HELPERS:
        exec(helper, known)
    lines = block.splitlines()
    for statement in ast.parse(block).body:
        error = re.search(r"# (\w+Error)$", lines[(statement.end_lineno or 0) - 1])
        if error is None:
            exec(ast.unparse(statement), known)
            continue
        with pytest.raises(Exception) as caught:
            exec(ast.unparse(statement), known)
        assert type(caught.value).__name__ == error[1]


def test_every_defect_has_its_reproduction() -> None:
    told = re.findall(r"^\*\*", PAGE, re.MULTILINE)
    assert len(told) == len(REPRODUCTIONS)


def test_its_version_is_pinned_while_private_parts_of_it_are_used() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"renderers=={version('renderers')}" in extras["proxy"]
