"""Agent frameworks from the package index run their own tool loops against a fleet, unchanged.

The loop ends, forms validate, and every turn that only appends extends its parent: the rows of a session are the number
in `frameworks`. `make agents` runs all of them; here is the core.
"""

from collections.abc import Iterator

import pytest
from tests.agents.frameworks import FRAMEWORKS, ROUNDS, Framework
from tests.agents.running import TIMEOUT, fleet_for, run
from tests.fleets import Fleet

pytestmark = pytest.mark.timeout(TIMEOUT + 60)

CORE = [framework for framework in FRAMEWORKS if framework.core]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with fleet_for(tmp_path_factory.mktemp("agents"), last_call=None) as running:
        yield running


@pytest.mark.parametrize("framework", CORE, ids=[framework.name for framework in CORE])
def test_a_loop_is_captured_as_one_conversation(fleet: Fleet, framework: Framework) -> None:
    outcome = run(framework, fleet)
    assert outcome.calls >= ROUNDS
    assert outcome.structured == framework.structured
    assert (outcome.turns, outcome.rows) == (framework.turns, framework.rows), outcome.branches
