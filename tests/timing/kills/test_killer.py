"""The killer finds nothing in a fleet that keeps its promises, and finds each fault that is planted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from tests.paths import ROOT
from tests.printing import say
from tests.timing.kills.faults.sitecustomize import ANSWER_BEFORE_COMMIT, FORGOTTEN_ACK, FORGOTTEN_START_KEY
from tests.timing.kills.kinds import Kind
from tests.timing.kills.run import Asked, run
from tests.waiting import PATIENCE

from rolloutfleet_proxy.failpoints import AFTER_START, BEFORE_COMMIT


@pytest.fixture(scope="module")
def bytecode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bytecode")


def test_a_kill_of_each_kind_loses_nothing_and_doubles_nothing(
    tmp_path: Path, bytecode: Path, request: pytest.FixtureRequest
) -> None:
    outcome = run(Asked(kills=len(Kind), seed=1, minutes=4, proxies=3), tmp_path, bytecode=bytecode)
    assert outcome.contradictions == []
    kept = json.loads(json.dumps(outcome.record))
    assert kept["by_kind"] == dict.fromkeys(Kind, 1), kept["not_seen_in_time"]
    assert all(kill.under_way and kill.seen_by for kill in outcome.kills)
    assert all(kept["answers"][what] for what in ("turn", "start again", "export", "acknowledgement", "import"))
    assert kept["audits_compared"] == 3 and kept["lost"] == kept["twice"] == 0
    say(request, f"{kept['kills']} kills in {kept['seconds']} s; {kept['answers']}")


@pytest.mark.parametrize(
    ("fault", "kind", "place", "shown"),
    [
        (ANSWER_BEFORE_COMMIT, Kind.PARENT, BEFORE_COMMIT, ""),
        (FORGOTTEN_ACK, Kind.ACK, None, "answered the acknowledgement of"),
        (FORGOTTEN_START_KEY, Kind.WORKER, AFTER_START, "start 'run"),
    ],
)
def test_a_planted_fault_is_found(
    fault: str, kind: Kind, place: str | None, shown: str, tmp_path: Path, bytecode: Path
) -> None:
    asked = Asked(kills=10, seed=1, minutes=3, proxies=1, kinds=[kind], at_work=[place], fault=fault)
    outcome = run(asked, tmp_path, bytecode=bytecode)
    assert outcome.contradictions, outcome.record
    assert any(shown in text for text in outcome.contradictions), outcome.contradictions


def test_kills_that_are_interrupted_leave_nothing_running_and_say_what_they_did(tmp_path: Path, bytecode: Path) -> None:
    output = tmp_path / "result.json"
    environment = os.environ | {"TMPDIR": str(tmp_path), "PYTHONPYCACHEPREFIX": str(bytecode)}
    with subprocess.Popen(
        [sys.executable, "-m", "tests.timing.kills", "--proxies", "1", "--kinds", "gateway", "--output", str(output)],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as running:
        assert running.stdout is not None
        for line in running.stdout:
            if "1 of 1000" in line:
                break
        started = psutil.Process(running.pid).children(recursive=True)
        assert len(started) >= 4, "two engines, a gateway and a proxy"
        running.send_signal(signal.SIGINT)
        told = running.communicate(timeout=PATIENCE)[0]
    assert running.returncode == 130 and "Traceback" not in told, told
    assert "Not judged: gateway" in told and "There is no result." in told, told
    _, alive = psutil.wait_procs(started, timeout=PATIENCE)
    assert not alive and not list(tmp_path.iterdir()), "neither processes nor files"
