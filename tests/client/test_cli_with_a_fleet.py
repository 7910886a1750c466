"""The commands against a running fleet: two proxies, the real gateway, simulated engines."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy
import psutil
import pytest
from safetensors.numpy import load_file
from tests.operator.running import Up, running

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


class Trainer:
    """Starts sessions and talks in them."""

    def __init__(self, up: Up) -> None:
        self.book = up.book()
        self.key = Path(self.book["admin_key_file"]).read_text().strip()

    def call(self, method: str, url: str, body: object, key: str | None = None) -> Any:
        headers = {"authorization": f"Bearer {key or self.key}"}
        answer = httpx.request(method, url, json=body, headers=headers, trust_env=False, timeout=30)
        assert answer.is_success, answer.text
        return answer.json()

    def session(self, turns: int) -> tuple[str, list[str]]:
        """A session of so many turns: its id, and the turns'."""
        started = self.call("POST", f"{self.book['proxies'][0]['url']}/sessions", {"task_id": "t"})
        messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
        ids = []
        for _ in range(turns):
            asked = {"model": "simulated", "messages": messages, "max_tokens": 500}
            answer = self.call("POST", f"{started['base_url']}/chat/completions", asked, started["api_key"])
            ids.append(answer["id"])
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "go on"}]
        return started["session_id"], ids

    def reward(self, session: str, reward: float) -> None:
        self.call("POST", f"{self.book['proxies'][0]['url']}/sessions/{session}/reward", {"reward": reward})


def asked(up: Up, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "rolloutfleet.cli", *words, "--state-dir", str(up.state)],
        capture_output=True,
        text=True,
        timeout=60,
    )


def answered(up: Up, *words: str) -> Any:
    done = asked(up, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sessions_and_turns_of_all_proxies_are_listed(up: Up) -> None:
    trainer = Trainer(up)
    made = [trainer.session(2) for _ in range(6)]
    listed = {each["session_id"]: each for each in answered(up, "sessions", "--limit", "1000")}
    assert {session for session, _ in made} <= set(listed)
    assert {each["ordinal"] for each in listed.values()} == {0, 1}
    for session, turns in made:
        assert [turn["turn_id"] for turn in answered(up, "turns", session)] == turns
        assert listed[session]["turns"] == 2
    session, turns = made[0]
    shown = asked(up, "turns", session).stdout
    assert all(turn in shown for turn in turns)


def test_the_status_counts_everything(up: Up) -> None:
    Trainer(up).session(1)
    status = answered(up, "status")
    assert [proxy["ordinal"] for proxy in status["proxies"]] == [0, 1]
    assert status["audit"]["balanced"] is True
    assert status["audit"]["turns"]["created"] > 0
    shown = asked(up, "status")
    assert shown.returncode == 0
    for proxy in up.book()["proxies"]:
        assert proxy["url"] in shown.stdout
    assert "yes" in shown.stdout


def test_an_export_without_a_file_shows_and_gives_back(up: Up) -> None:
    trainer = Trainer(up)
    session, _ = trainer.session(2)
    trainer.reward(session, 1.0)
    shown = asked(up, "export", "--session", session)
    assert shown.returncode == 0, shown.stderr
    assert session in shown.stdout
    assert asked(up, "export", "--session", session).stdout == shown.stdout


def test_an_acknowledged_export_is_on_disk_and_gone_from_the_fleet(up: Up, tmp_path: Path) -> None:
    trainer = Trainer(up)
    session, turns = trainer.session(3)
    trainer.reward(session, 0.5)
    file = tmp_path / "export.json"
    done = asked(up, "export", "--session", session, "-o", str(file), "--ack")
    assert done.returncode == 0, done.stderr
    exported = json.loads(file.read_text())
    assert [turn["turn_id"] for turn in exported["trajectories"][0]["turns"]] == turns
    again = asked(up, "export", "--session", session, "-o", str(tmp_path / "none.json"))
    assert "nothing to export now" in again.stdout
    assert not (tmp_path / "none.json").exists()


def test_safetensors_are_leased_until_they_are_acknowledged(up: Up, tmp_path: Path) -> None:
    trainer = Trainer(up)
    session, _ = trainer.session(2)
    trainer.reward(session, 0.5)
    file = tmp_path / "export.safetensors"
    done = asked(up, "export", "--session", session, "-o", str(file), "--format", "safetensors")
    assert done.returncode == 0, done.stderr
    tensors = load_file(file)
    assert tensors["cu_seqlens"][-1] == len(tensors["input_ids"])
    assert tensors["input_ids"].dtype == numpy.int64
    assert "leased elsewhere" in asked(up, "export", "--session", session).stdout
    lease = done.stdout.split("lease ")[1].split()[0]
    assert asked(up, "release", lease).returncode == 0
    assert session in asked(up, "export", "--session", session, "-o", str(file), "--ack").stdout


@pytest.mark.parametrize("command", [["turns", "nothing"], ["ack", "nothing"], ["release", "nothing"]])
def test_what_is_not_there_is_said_in_one_line(up: Up, command: list[str]) -> None:
    done = asked(up, *command)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "(404" in done.stderr


def test_a_killed_proxy_is_back_on_its_address_with_its_turns(up: Up) -> None:
    trainer = Trainer(up)
    made = [trainer.session(2) for _ in range(4)]
    before = up.book()["proxies"]
    psutil.Process(before[1]["pid"]).kill()
    up.until(lambda: up.book()["proxies"][1]["pid"] != before[1]["pid"])
    up.until(lambda: up.said().count("proxy-1: ready") == 2)
    assert up.book()["proxies"][1]["url"] == before[1]["url"]
    for session, turns in made:
        assert [turn["turn_id"] for turn in answered(up, "turns", session)] == turns
