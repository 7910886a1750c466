"""Every planted fault can still be planted, and was caught when all of them were run last (`make faults`)."""

from collections import Counter

import pytest
from tests.paths import ROOT
from tests.timing.faults.fault import Fault, Promise
from tests.timing.faults.planted import FAULTS
from tests.timing.faults.results import read

LEAST = 30
NOT_FAST = ("pytest.mark.real", "pytest.mark.apiserver")


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_has_its_place_and_its_tests(fault: Fault) -> None:
    fault.file(ROOT)
    assert fault.planted != fault.text
    assert fault.tests
    for test in fault.selection(ROOT):
        file, _, name = test.partition("::")
        text = (ROOT / file).read_text()
        assert not name or f"def {name.partition('[')[0]}(" in text, test
        assert not file.startswith("tests/engine/") and not any(mark in text for mark in NOT_FAST), test


def test_there_are_faults_of_every_promise() -> None:
    assert len(FAULTS) >= LEAST
    assert Counter(fault.promise for fault in FAULTS).keys() == set(Promise)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


def test_every_fault_was_caught_when_they_were_run_last() -> None:
    caught = {outcome.fault: outcome.caught_by for outcome in read()}
    assert caught.keys() == {fault.name for fault in FAULTS}
    assert all(caught.values()), caught
