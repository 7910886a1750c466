"""The arithmetic of sizing, and that its page says what the committed records give."""

from dataclasses import replace

import pytest
from benchmarks import sizing
from benchmarks.sizing import Agents, Measured, needs
from tests.paths import ROOT

PAGE = ROOT / "docs" / "sizing.md"
MEASURED = Measured(
    turns_a_second=600.0,
    proxy_cpu=0.001,
    gateway_cpu=0.0005,
    store_bytes=20_000.0,
    resident_mb=200.0,
    request_bytes=24_000.0,
)


def test_the_largest_of_three_decides() -> None:
    agents = Agents(sessions=12_000, generation=10.0, pause=10.0, turns=50)
    found = needs(agents, MEASURED)
    assert (found.by_rate, found.by_calls, found.by_sessions, found.proxies) == (2, 4, 2, 4)
    idle = needs(replace(agents, sessions=100_000, pause=10_000.0), MEASURED)
    assert (idle.by_rate, idle.by_calls, idle.by_sessions, idle.proxies) == (1, 1, 10, 10)
    quick = needs(replace(agents, generation=0.5, pause=0.5), MEASURED)
    assert (quick.by_rate, quick.by_calls, quick.proxies) == (40, 4, 40)


def test_turns_cores_and_disk_follow_from_the_agents() -> None:
    found = needs(Agents(sessions=12_000, generation=10.0, pause=10.0, turns=50), MEASURED)
    assert (found.turns_a_second, found.in_flight) == (600.0, 6_000.0)
    assert found.proxy_cores == pytest.approx(0.6)
    assert found.gateway_cores == pytest.approx(0.3)
    assert found.store_bytes == 12_000 * 25 * 20_000.0
    assert found.stored_a_second == 600.0 * 20_000.0


def test_the_page_has_what_the_committed_records_give() -> None:
    cases = [Agents(sessions) for sessions in sizing.ROUTINE]
    assert sizing.table(cases, sizing.read()) in PAGE.read_text(), "python -m benchmarks.sizing"
