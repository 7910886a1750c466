"""`rolloutfleet top` in a terminal: it follows a fleet, takes keys, and leaves the terminal as it was."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.browser.terminals import terminal
from tests.commands import CLI, suspended
from tests.integration.client.fleet.agents import talk
from tests.local_fleets import Up, running
from tests.waiting import until

from rolloutfleet.fleet import Fleet

FLEET = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {name: math}
spec: {model: simulated, engine: {replicas: 2, simulated: {latency: 0s, tokenLatency: 0s}}, proxies: {replicas: 2}}
"""


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    with running(tmp_path_factory.mktemp("fleet"), FLEET) as up:
        up.book()
        yield up


def test_top_follows_the_fleet_in_a_terminal_and_leaves_it_as_it_was(up: Up, tmp_path: Path) -> None:
    with terminal() as screen, Fleet.from_file(up.state) as fleet:
        screen.run(*CLI, "top", "--interval", "200ms", "--state-dir", str(up.state))
        screen.until_shown("2 of 2 ready")
        until(lambda: asyncio.run(talk(fleet.start_session())) and re.search(r"[1-9]\d* sampled", screen.screen()))
        screen.press("s", "r")
        screen.until_shown("now open, backwards")
        fleet.pause()
        screen.until_shown("   paused")
        fleet.resume()
        screen.until(lambda shown: "   paused" not in shown)
        screen.resize(60, 20)
        screen.until(lambda shown: all(len(line) <= 60 for line in shown.splitlines()) and "2 of 2 ready" in shown)
        screen.resize(130, 30)
        screen.record(printed := tmp_path / "printed")
        with suspended(up.book()["proxies"][1]["pid"]):
            # For two seconds, until its figures are given up.
            until(lambda: "no answer for 2 s" in printed.read_text(errors="replace"))
            shown = screen.until_shown("1 of 2 ready")
            assert "proxy 1: " in shown and "does not answer: GET" not in shown
        screen.until_shown("2 of 2 ready")
        screen.press("q")
        screen.type("echo status $?")
        screen.until_shown("status 0")


def test_ctrl_c_ends_top_and_the_terminal_is_as_it_was(up: Up) -> None:
    with terminal() as screen:
        screen.run(*CLI, "top", "--state-dir", str(up.state))
        screen.until_shown("2 of 2 ready")
        screen.press("C-c")
        screen.type("echo status $?; stty -a")
        shown = screen.until_shown(" icanon")
        assert "status 130" in shown and " echo " in shown and "Traceback" not in shown and "ready\n" not in shown
