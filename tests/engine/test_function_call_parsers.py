"""Replies beside the real SGLang's own function-call parsers: which are read alike, and where the proxy is right."""

import pytest
from tests.engine.function_calls import USUAL, Case, Readings, read, with_table
from tests.engine.sglang.places import Installed
from tests.unit.proxy.tokens.models.page import PAGE

Found = list[tuple[Case, Readings]]


@pytest.fixture(scope="module")
def found(sglang: Installed, tmp_path_factory: pytest.TempPathFactory) -> Found:
    return read(sglang, tmp_path_factory.mktemp("models"))


def test_replies_as_a_format_writes_them_are_read_as_sglang_reads_them(found: Found) -> None:
    usual = [(case, each) for case, each in found if case.says in USUAL]
    assert {case.family for case, _ in usual} == {case.family for case, _ in found}
    assert all(set(each) == set(case.right) for case, each in usual), usual


def test_the_proxy_is_right_in_every_case(found: Found) -> None:
    assert [(case, each) for case, each in found if each.here not in case.right] == []


def test_the_table_of_differences_is_true(found: Found) -> None:
    page = PAGE.read_text()
    assert with_table(page, found) == page, "python -m tests.engine.function_calls writes the table"
