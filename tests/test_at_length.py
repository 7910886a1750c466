"""The committed result of `make at-length` is of what there is."""

from e2e.results import read
from tests.at_length import LATEST, files


def test_all_that_repeats_something_has_passed_at_length() -> None:
    results = read(LATEST)
    assert {result.file for result in results} == set(files())
    assert [result.scenario for result in results if not result.passed] == []
