"""A small fuzz finds nothing; and it would: what its model or a proxy gets wrong is noticed."""

import asyncio
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import pytest
from tests.fleets import Fleet, running_fleet
from tests.integration.fuzz import breaking
from tests.integration.fuzz.model import Lease, Model, Session
from tests.integration.fuzz.results import LATEST, LEAST_2XX, is_clean, summary
from tests.integration.fuzz.running import SETTINGS, Fuzz
from tests.paths import ROOT
from tests.printing import say
from tests.waiting import PATIENCE

CASES = 500
SEED = 20261122
TIMEOUT = 240.0


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with running_fleet(tmp_path_factory.mktemp("fuzz"), proxies=2, settings=SETTINGS) as running:
        yield running


def fuzz(fleet: Fleet, cases: int, *, model: Model | None = None) -> Fuzz:
    made = Fuzz(fleet, seed=SEED, model=model)
    asyncio.run(made.run(cases, batch=250, until=time.monotonic() + TIMEOUT))
    return made


def test_a_fuzz_finds_nothing(fleet: Fleet, request: pytest.FixtureRequest) -> None:
    began = time.monotonic()
    ran = fuzz(fleet, CASES)
    seconds = time.monotonic() - began
    result = summary(ran.covered, ran.faults, asked=CASES, commit="", seed=SEED, proxies=2, date="", seconds=seconds)
    say(request, f"{ran.covered.cases} cases, {result['share_2xx']:.0%} reached 2xx, {ran.covered.audits} audits")
    assert is_clean(result), (result["faults"], result["calls_without_2xx"])
    assert ran.covered.reached_2xx >= LEAST_2XX * CASES and ran.covered.audits == 2 * ran.covered.batches > 0
    kinds = {make.__name__ for make, _ in (*breaking.RIGHT, *breaking.WRONG)} - {"field_of"}
    kinds |= {"field", "name", "other_key", "huge", *(make.__name__ for make in breaking.ENDLESS)}
    assert kinds <= ran.covered.by_kind.keys(), "every kind of case was made"


class Lies(Model):
    """At proxy 0 it counts one turn too many; at proxy 1 it takes what was acknowledged for given back."""

    planted = False

    def answered(self, session: Session, turn_id: str) -> None:
        super().answered(session, turn_id)
        if session.proxy == 0 and not self.planted:
            self.planted = True
            super().answered(session, "of-nobody")

    def acknowledged(self, lease: Lease, names: Iterable[str]) -> None:
        (self.released if lease.proxy == 1 else super().acknowledged)(lease, names)


def test_each_lie_of_the_model_is_caught(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.integration.fuzz.running.SECONDS_TO_SETTLE", 1.0)
    with running_fleet(tmp_path, proxies=2, settings=SETTINGS) as fleet:
        found = fuzz(fleet, 200, model=Lies(2)).faults
    assert {fault.proxy for fault in found if "the answers said" in fault.what} == {0, 1}, found


def test_an_interrupted_fuzz_leaves_nothing_running(tmp_path: Path) -> None:
    output = tmp_path / "result.json"
    command = [sys.executable, "-m", "tests.integration.fuzz", "--batch", "50", "--output", str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if line.startswith("batch 1"):
                break
        started = psutil.Process(running.pid).children(recursive=True)
        assert len(started) >= 4, "engine, gateway and two proxies"
        running.send_signal(signal.SIGINT)
        told = running.communicate(timeout=PATIENCE)[1]
    assert running.returncode == 130 and "Interrupted" in told and "Traceback" not in told, told
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)
    assert not alive and not output.exists()


def test_the_committed_result_is_of_100_000_cases_that_found_nothing() -> None:
    result = json.loads(LATEST.read_text())
    assert result["cases"] >= 100_000 and re.fullmatch("[0-9a-f]{7,40}", result["commit"]), "of a commit as it was"
    assert is_clean(result) and result["audits_compared"] == result["proxies"] * result["batches"] > 0
    assert sum(result["by_status"].values()) == result["cases"]
