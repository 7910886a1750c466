"""Every planted fault can still be planted, and was caught when all of them were run last (`make faults`)."""

from collections import Counter

import pytest
from tests.paths import ROOT
from tests.timing.faults.fault import Fault, Promise, part_of
from tests.timing.faults.planted import FAULTS
from tests.timing.faults.results import read

LEAST = 30
RUN_IN_A_COPY = {"unit", "integration", "system", "browser", "timing"}
"""Parts of the tests that a copy of the sources can run by itself."""
SCRIPTS = (".js", ".html")
"""Of the page: only a browser runs them."""


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    fault.file(ROOT)
    assert fault.planted != fault.text
    assert fault.tests
    parts = {part_of(test) for test in fault.selection(ROOT)}
    assert parts <= RUN_IN_A_COPY
    assert parts & {"unit", "integration"} or fault.file(ROOT).suffix in SCRIPTS


def test_there_are_faults_of_every_promise() -> None:
    assert len(FAULTS) >= LEAST
    assert Counter(fault.promise for fault in FAULTS).keys() == set(Promise)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_fault_was_caught_when_they_were_run_last() -> None:
    caught = {outcome.fault: outcome.caught_by for outcome in read()}
    assert caught.keys() == {fault.name for fault in FAULTS}
    assert all(caught.values()), caught
