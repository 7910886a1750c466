"""A local fleet with real processes: the real gateway and simulated engines, run by the real command."""

import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from tests.operator.running import PATIENCE, running

FLEET = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {name: math}
spec: {model: simulated, engine: {replicas: 2}, proxies: {replicas: 0}}
"""


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=20)
    return all(each.status() == psutil.STATUS_ZOMBIE for each in alive)


def test_a_fleet_comes_up_heals_and_goes(tmp_path: Path) -> None:
    with running(tmp_path, FLEET) as up:
        book = up.book()
        assert book["name"] == "math"
        assert stat.S_IMODE(Path(book["admin_key_file"]).stat().st_mode) == 0o600
        gateway = book["gateway"]["url"]
        engines = [engine["url"] for engine in book["engines"]]
        workers = httpx.get(f"{gateway}/workers", trust_env=False).json()["workers"]
        assert sorted(worker["url"] for worker in workers) == sorted(engines)

        answer = httpx.post(
            f"{gateway}/generate",
            json={"input_ids": [1, 2, 3], "sampling_params": {"max_new_tokens": 4}, "return_logprob": True},
            trust_env=False,
        )
        assert answer.status_code == 200

        victim = up.engine(engines[0])
        victim.kill()
        up.until_said("engine-0: killed by SIGKILL")
        up.until_said("engine-0: started again: killed by SIGKILL")
        up.until(lambda: up.said().count("engine-0: ready") == 2)
        assert httpx.get(f"{engines[0]}/health", trust_env=False).status_code == 200

        started = list(up.children().values())
        assert len(started) == 3
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(30) == 0
        assert gone(started)
        assert not (up.state / "fleet.json").exists()

    with running(tmp_path, FLEET) as up:
        assert [engine["url"] for engine in up.book()["engines"]] == engines


def test_nothing_outlives_a_fleet_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, FLEET.replace("replicas: 0", "replicas: 1")) as up:
        up.book()
        everything = psutil.Process(up.process.pid).children(recursive=True)
        assert len(everything) >= 5
        up.process.kill()
        up.process.wait()
        assert gone(everything)


def test_two_fleets_never_share_a_state_folder(tmp_path: Path) -> None:
    with running(tmp_path, FLEET) as up:
        up.book()
        second = subprocess.run(
            [
                sys.executable,
                "-m",
                "rolloutfleet.cli",
                "up",
                str(tmp_path / "fleet.yaml"),
                "--state-dir",
                str(up.state),
            ],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert second.returncode == 2
        assert f"a fleet already runs from {up.state} (process {up.process.pid})" in second.stderr
        assert second.stderr.count("\n") == 1
        assert up.process.poll() is None


@pytest.mark.parametrize(
    ("spec", "status", "problems"),
    [
        (
            "{model: m, tokenizer: {path: empty}, engine: {}, proxies: {replicas: 0}}",
            1,
            ["the end of", "no tokenizer.json", "rolloutfleet: engine-0: ended with exit status"],
        ),
        ("{model: org/name, engine: {}}", 2, ["simulated engines need a tokenizer on this machine"]),
        ("{model: m, tokenizer: {path: none}, engine: {}}", 2, ["tokenizer.path:", "is no directory"]),
        ("{model: m, gateway: {engines: {selector: {a: b}}}}", 2, ["finds pods on a cluster"]),
    ],
)
def test_a_start_that_fails_says_why(tmp_path: Path, spec: str, status: int, problems: list[str]) -> None:
    (tmp_path / "empty").mkdir()
    text = FLEET.splitlines()[:3]
    with running(tmp_path, "\n".join([*text, f"spec: {spec}\n"])) as up:
        assert up.process.wait(PATIENCE) == status
        for problem in problems:
            assert problem in up.said()
        assert "rolloutfleet_operator" not in up.said(), "a traceback of ours"


def test_our_own_variables_do_not_reach_the_children() -> None:
    from rolloutfleet_operator.local.processes import child_environment

    made = child_environment({"ROLLOUTFLEET_PORT": "1", "PATH": "/bin", "NO_PROXY": "a"})
    assert "ROLLOUTFLEET_PORT" not in made
    assert made["PATH"] == "/bin"
    assert made["NO_PROXY"] == "a,127.0.0.1,localhost"
    assert os.environ.get("ROLLOUTFLEET_PORT") is None
