"""A local fleet with real processes: the real gateway and simulated engines, run by the real command."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.integration.operator.ending import FLEET, assert_ended
from tests.local_fleets import running
from tests.processes import free_port
from tests.waiting import PATIENCE, START

from rolloutfleet.fleet import EngineAddress, Fleet
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import running_engine
from rolloutfleet_operator.local.ports import Claims


@contextmanager
def claimed(state: Path) -> Iterator[None]:
    """No other fleet is given the ports of one that has ended, until the block ends; the same fleet may have them."""
    claims = Claims()
    for port in json.loads((state / "ports.json").read_text()).values():
        claims.take(port)
    try:
        yield
    finally:
        claims.release()


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=PATIENCE)
    return all(each.status() == psutil.STATUS_ZOMBIE for each in alive)


def test_a_fleet_comes_up_heals_and_goes(tmp_path: Path) -> None:
    with running(tmp_path, FLEET) as up:
        book = up.book()
        assert book["name"] == "math"
        assert stat.S_IMODE(Path(book["admin_key_file"]).stat().st_mode) == 0o600
        gateway = book["gateway"]["url"]
        engines = [engine["url"] for engine in book["engines"]]
        key = (up.state / "gateway.key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        workers = httpx.get(f"{gateway}/workers", headers=headers, trust_env=False).json()["workers"]
        assert sorted(worker["url"] for worker in workers) == sorted(engines)

        victim = up.engine(engines[0])
        victim.kill()
        up.until_said("engine-0: killed by SIGKILL")
        up.until_said("engine-0: started again: killed by SIGKILL")
        up.until(lambda: up.said().count("engine-0: ready") == 2)
        assert httpx.get(f"{engines[0]}/health", trust_env=False).status_code == 200
        said = up.state / "logs" / "gateway.log"
        nobody = {"url": "http://127.0.0.1:9"}
        assert httpx.post(f"{gateway}/workers", json=nobody, headers=headers, trust_env=False).is_success
        up.until(lambda: '"level":"WARN"' in said.read_text())
        assert "\x1b" not in said.read_text(), "what the gateway says has no colour codes"

        started = list(up.children().values())
        assert len(started) == 3
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(PATIENCE) == 0
        assert gone(started)
        assert not (up.state / "fleet.json").exists()

    with claimed(up.state), running(tmp_path, FLEET) as up:
        assert [engine["url"] for engine in up.book()["engines"]] == engines


def test_the_gateways_own_routes_take_a_key_that_no_other_user_can_read(tmp_path: Path) -> None:
    """Who may add an engine may have all that is generated."""
    with running(tmp_path, FLEET) as up:
        gateway = up.book()["gateway"]["url"]
        key = up.state / "gateway.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_text().strip() not in " ".join(up.children())
        for bearer in (None, (up.state / "admin.key").read_text().strip()):
            headers = {} if bearer is None else {"authorization": f"Bearer {bearer}"}
            asked = {"url": "http://127.0.0.1:9"}
            answer = httpx.post(f"{gateway}/workers", json=asked, headers=headers, trust_env=False)
            assert answer.status_code == 401


GENERATION: dict[str, Any] = {
    "input_ids": [1, 2, 3],
    "sampling_params": {"max_new_tokens": 4},
    "return_logprob": True,
}
CONTROL: dict[str, dict[str, Any]] = {
    "/update_weights_from_disk": {"model_path": "a checkpoint", "weight_version": "1"},
    "/pause_generation": {"mode": "in_place"},
    "/continue_generation": {},
}


def test_gateway_and_simulated_engines_require_the_key_of_the_fleet(tmp_path: Path) -> None:
    with running(tmp_path, FLEET.replace("replicas: 0", "replicas: 1")) as up:
        book = up.book()
        key = Path(book["engine_key_file"])
        assert key == up.state / "engine.key"
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        assert key.read_text().strip() not in " ".join(up.children())
        urls = [book["gateway"]["url"], *(engine["url"] for engine in book["engines"])]
        calls = [(f"{url}/generate", GENERATION) for url in urls]
        calls += [(f"{url}{path}", body) for url in urls[1:] for path, body in CONTROL.items()]
        refused = [httpx.post(url, json=body, trust_env=False) for url, body in calls]
        assert {answer.status_code for answer in refused} == {401}
        headers = {"authorization": f"Bearer {key.read_text().strip()}"}
        taken = [httpx.post(url, json=body, headers=headers, trust_env=False) for url, body in calls]
        assert {answer.status_code for answer in taken} == {200}

        with Fleet.from_file(up.state) as fleet:
            fleet.pause()
            assert [paused(engine) for engine in fleet.engines] == [True, True]
            fleet.resume()
            assert [paused(engine) for engine in fleet.engines] == [False, False]


def paused(engine: EngineAddress) -> bool:
    """Whether it takes no generations."""
    assert httpx.get(f"{engine.url}/model_info", headers=engine.headers, trust_env=False).status_code == 200
    return httpx.get(f"{engine.url}/ready", trust_env=False).status_code == 503


def test_nothing_outlives_a_fleet_that_is_killed(tmp_path: Path) -> None:
    with running(tmp_path, FLEET.replace("replicas: 0", "replicas: 1")) as up:
        up.book()
        others = 0o077
        open_to_others = [path for path in (up.state, *up.state.rglob("*")) if path.lstat().st_mode & others]
        assert [path for path in open_to_others if not path.is_symlink()] == []
        everything = psutil.Process(up.process.pid).children(recursive=True)
        assert len(everything) >= 5
        up.process.kill()
        up.process.wait()
        assert gone(everything)


def test_a_fleet_that_was_killed_is_started_again_on_its_ports(tmp_path: Path) -> None:
    with running(tmp_path, FLEET.replace("replicas: 0", "replicas: 1")) as up:
        before = up.book()
        up.process.kill()
        up.process.wait()
    with claimed(up.state), running(tmp_path, FLEET.replace("replicas: 0", "replicas: 1")) as up:
        up.until_said("is up")
        after = up.book()
        assert after["proxies"][0]["url"] == before["proxies"][0]["url"]
        assert after["engines"] == before["engines"]


def test_a_port_that_another_program_holds_is_named_and_only_replaced_when_asked(tmp_path: Path) -> None:
    ports = tmp_path / "state" / "ports.json"
    ports.parent.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as other:
        held = other.getsockname()[1]
        ports.write_text(json.dumps({"engine-1": held}))
        with running(tmp_path, FLEET) as up:
            assert up.process.wait(PATIENCE) == 2
            assert up.said().count("\n") == 1
            assert f"engine-1 had port {held}" in up.said()
            assert f"process {os.getpid()} (" in up.said()
            assert "--new-ports" in up.said()
            assert up.left() == []
            assert json.loads(ports.read_text()) == {"engine-1": held}
        with running(tmp_path, FLEET, "--new-ports") as up:
            addresses = [engine["url"] for engine in up.book()["engines"]]
            assert f"http://127.0.0.1:{held}" not in addresses


@pytest.mark.parametrize("said", ["", "engine-0: starting", "engine-0: ready", "proxy-1: starting", "is up"])
def test_ctrl_c_ends_everything_whatever_is_under_way(tmp_path: Path, said: str) -> None:
    with running(tmp_path, FLEET.replace("replicas: 0", "replicas: 2")) as up:
        up.until_said(said)
        up.ctrl_c()
        assert_ended(up, within=PATIENCE)


def test_a_fleet_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with running(tmp_path, FLEET, under=("nohup",)) as up:
        [engine, *_] = up.book()["engines"]
        up.process.send_signal(signal.SIGHUP)
        up.engine(engine["url"]).kill()
        up.until_said("engine-0: started again: killed by SIGKILL")
        up.until(lambda: up.said().count("engine-0: ready") == 2)


def test_a_terminal_that_goes_ends_its_fleet(tmp_path: Path) -> None:
    with running(tmp_path, FLEET, under=("env", "--default-signal=HUP")) as up:
        up.book()
        up.process.send_signal(signal.SIGHUP)
        assert up.process.wait(PATIENCE) == 0
        assert up.left() == []


def of_engines(*urls: str) -> str:
    """A fleet without proxies, of engines that somebody else runs."""
    spec = {"model": "simulated", "gateway": {"engines": {"urls": urls}}, "proxies": {"replicas": 0}}
    return "\n".join([*FLEET.splitlines()[:3], f"spec: {json.dumps(spec)}\n"])


def test_up_waits_for_an_engine_that_comes_later(tmp_path: Path) -> None:
    port = free_port()
    with running(tmp_path, of_engines(f"http://127.0.0.1:{port}")) as up:
        up.until_said(f"waiting for engine http://127.0.0.1:{port} (connection refused), ")
        assert not (up.state / "fleet.json").exists()
        with running_engine(port=port):
            up.until_said("math is up")
            workers = httpx.get(f"{up.book()['gateway']['url']}/readiness", trust_env=False).json()
            assert workers["healthy_workers"] == 1


def test_up_ends_when_engines_do_not_come_in_the_time_that_it_was_given(tmp_path: Path) -> None:
    """One that has come is not named."""
    missing = f"http://127.0.0.1:{free_port()}"
    with running_engine() as there, running(tmp_path, of_engines(missing, there.url), "--wait", "3s") as up:
        assert up.process.wait(START) == 1
        assert f"rolloutfleet: engine {missing} (connection refused) did not come within 3s\n" in up.said()
        assert up.left() == []


def test_ctrl_c_names_the_engine_that_up_waited_for(tmp_path: Path) -> None:
    with running_engine(EngineOptions(api_key="a key")) as engine, running(tmp_path, of_engines(engine.url)) as up:
        up.until_said("waiting for engine")
        up.ctrl_c()
        assert up.process.wait(PATIENCE) == 130
        assert f"stopped while waiting for engine {engine.url} (answers 401), " in up.said()


def test_the_key_of_given_engines_is_that_of_the_gateway_too(tmp_path: Path) -> None:
    key = tmp_path / "theirs.key"
    key.write_text("a key\n")
    with (
        running_engine(EngineOptions(api_key="a key")) as engine,
        running(tmp_path, of_engines(engine.url), "--engine-key-file", str(key)) as up,
    ):
        book = up.book()
        assert book["engine_key_file"] == str(key)
        generate = f"{book['gateway']['url']}/generate"
        headers = {"authorization": "Bearer a key"}
        assert httpx.post(generate, json=GENERATION, trust_env=False).status_code == 401
        assert httpx.post(generate, json=GENERATION, headers=headers, trust_env=False).status_code == 200


def test_two_fleets_never_share_a_state_folder(tmp_path: Path) -> None:
    with running(tmp_path, FLEET) as up:
        up.book()
        second = subprocess.run(
            [
                sys.executable,
                "-m",
                "rolloutfleet",
                "up",
                str(tmp_path / "fleet.yaml"),
                "--state-dir",
                str(up.state),
            ],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
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
        ("{model: m, tokenizer: {path: none}, engine: {}}", 2, ["tokenizer.path:", "is not a directory"]),
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
        assert up.state.exists() == (status == 1), "what can't run here leaves no state folder"
        assert "rolloutfleet_operator" not in up.said(), "a traceback of ours"
