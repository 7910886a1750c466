"""The page's own code: what it must never do."""

import re
from pathlib import Path

import pytest
from tests.paths import ROOT

INSPECT = ROOT / "client" / "rolloutfleet" / "inspect"
DOCS = ROOT / "docs"
PICTURES = sorted((DOCS / "pictures").iterdir())
MODULES = sorted((INSPECT / "static").glob("*.js"))


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_no_module_has_data_parsed_as_html_or_run(file: Path) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|createContextualFragment"
    assert re.findall(forbidden, file.read_text()) == []


@pytest.mark.parametrize("file", MODULES, ids=lambda file: file.name)
def test_a_module_imports_its_neighbours_alone(file: Path) -> None:
    sources = re.findall(r'(?:from|import)\(?\s*"([^"]+)"', file.read_text())
    assert [source for source in sources if not re.fullmatch(r"\./\w+\.js", source)] == []


@pytest.mark.parametrize("file", sorted((INSPECT / "templates").glob("*.html")), ids=lambda file: file.name)
def test_no_template_trusts_data_or_holds_what_its_policy_forbids(file: Path) -> None:
    text = file.read_text()
    assert re.findall(r"\|\s*safe\b|autoescape false|\bon\w+=|\bstyle=|<style|javascript:|https?://", text) == []
    assert re.findall(r"<script(?![^>]* src=)", text) == []


@pytest.mark.parametrize("file", PICTURES, ids=lambda file: file.name)
def test_a_picture_is_small_is_on_a_page_and_fetches_nothing(file: Path) -> None:
    pages = [*DOCS.glob("*.md"), DOCS.parent / "README.md"]
    assert file.stat().st_size <= 200_000
    assert any(f"pictures/{file.name})" in page.read_text() for page in pages)
    if file.suffix == ".svg":
        assert re.findall(r"url\(h|href|@import|<script", file.read_text()) == []
