"""The commands against a running fleet: two proxies, the real gateway, simulated engines."""

import asyncio
import contextlib
import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import openai
import psutil
import pytest
from safetensors.numpy import load_file
from tests.commands import CLI, Done, invoke, ran, suspended
from tests.integration.client.fleet.agents import talk
from tests.integration.client.fleet.by_turns import starts_by_turns
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


def talked(up: Up, *, turns: int, reward: float | None = None) -> tuple[str, list[str]]:
    """A session of so many turns, which a reward makes a trajectory of: its id, and the turns'."""
    with Fleet.from_file(up.state) as fleet:
        session = fleet.start_session("t")
        ids = asyncio.run(talk(session, turns=turns, max_tokens=500))
        if reward is not None:
            session.reward(reward)
    return session.session_id, ids


def asked(up: Up, *words: str) -> Done:
    return invoke(*words, "--state-dir", str(up.state))


def answered(up: Up, *words: str) -> Any:
    done = asked(up, *words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_sessions_and_turns_of_all_proxies_are_listed(up: Up) -> None:
    with starts_by_turns():
        made = [talked(up, turns=2) for _ in range(6)]
    listed = {each["session_id"]: each for each in answered(up, "sessions", "--limit", "1000")}
    assert {session for session, _ in made} <= set(listed)
    assert {each["ordinal"] for each in listed.values()} == {0, 1}
    for session, turns in made:
        assert [turn["turn_id"] for turn in answered(up, "turns", session)] == turns
        assert listed[session]["turns"] == 2
    session, turns = made[0]
    shown = asked(up, "turns", session).stdout
    assert all(turn in shown for turn in turns)


def test_an_agent_started_in_the_shell_of_a_new_session_talks_in_it(up: Up) -> None:
    agent = (
        "import openai; api = openai.OpenAI(); "
        "api.chat.completions.create(model='simulated', messages=[{'role': 'user', 'content': 'hello'}], max_tokens=5)"
    )
    new = asked(up, "session", "new", "--task", "it's a task")
    assert new.returncode == 0, new.stderr
    shell = f'eval "$SAID"; exec {shlex.quote(sys.executable)} -c {shlex.quote(agent)}'
    done = ran("sh", "-c", shell, env={**os.environ, "SAID": new.stdout})
    assert done.returncode == 0, done.stderr
    (session,) = answered(up, "session", "list", "--task", "it's a task")
    assert (session["turns"], session["state"]) == (1, "open")
    name = session["session_id"]
    assert name in new.stdout.splitlines()[0]
    assert f"{name}: closed; made {name}-trajectory-1" in asked(up, "session", "close", name).stdout
    assert asked(up, "session", "delete", name).stdout == f"{name}: deleted\n"
    assert answered(up, "session", "list", "--task", "it's a task") == []


def test_a_new_session_for_claude_code_is_reached_by_what_is_printed(up: Up) -> None:
    agent = (
        "import httpx; from os import environ as set; "
        "url, key = set['ANTHROPIC_BASE_URL'] + '/v1/messages', set['ANTHROPIC_AUTH_TOKEN']; "
        "said = [{'role': 'user', 'content': 'hello'}]; "
        "body = {'model': set['ANTHROPIC_MODEL'], 'max_tokens': 5, 'messages': said}; "
        "httpx.post(url, json=body, headers={'authorization': 'Bearer ' + key}).raise_for_status()"
    )
    new = asked(up, "session", "new", "--task", "claude", "--for", "claude-code")
    assert new.returncode == 0, new.stderr
    shell = f'eval "$SAID"; exec {shlex.quote(sys.executable)} -c {shlex.quote(agent)}'
    done = ran("sh", "-c", shell, env={**os.environ, "SAID": new.stdout})
    assert done.returncode == 0, done.stderr
    (session,) = answered(up, "session", "list", "--task", "claude")
    assert session["turns"] == 1


def test_a_new_session_is_sampled_as_the_command_says(up: Up) -> None:
    said = {"defaults": {"temperature": 0.5}, "overrides": {"top_k": 3}}
    new = answered(up, "session", "new", "--task", "sampled", "--sampling", json.dumps(said))
    with Fleet.from_file(up.state) as fleet:
        assert fleet.status(new["session_id"]).sampling == said
    with openai.OpenAI(base_url=new["base_url"], api_key=new["api_key"]) as agent:
        asked_for: Any = {"role": "user", "content": "hello"}
        agent.chat.completions.create(model="m", messages=[asked_for], max_tokens=5, temperature=0.25)
    assert "temperature 0.25, top_k 3, max_tokens 5" in asked(up, "turns", new["session_id"]).stdout
    for wrong, why in (("{", "JSON object"), ('{"default": {}}', "sampling.default: no such field")):
        refused = asked(up, "session", "new", "--sampling", wrong)
        assert refused.returncode != 0 and why in refused.stderr


def test_what_can_be_ended_is_ended_and_the_rest_is_said(up: Up) -> None:
    made = [answered(up, "session", "new", "--task", "ends")["session_id"] for _ in range(2)]
    done = asked(up, "session", "delete", made[0], "s0-nobody", made[1])
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "s0-nobody" in done.stderr
    assert answered(up, "session", "list", "--task", "ends", "--state", "open") == []


def test_a_list_is_of_those_sessions_that_are_looked_for(up: Up) -> None:
    session, turns = talked(up, turns=2)
    with Fleet.from_file(up.state) as fleet:
        fleet.reward(session, 0.25, turn_id=turns[0], close=False)
        group = fleet.status(session).group_id
    wanted = [
        "--rewarded",
        "--min-reward",
        "0.25",
        "--max-reward",
        "0.25",
        "--min-turns",
        "2",
        "--max-version",
        "0",
        "--min-branches",
        "1",
    ]
    (listed,) = answered(up, "sessions", "--group", group, *wanted)
    assert (listed["session_id"], listed["reward"], listed["rewarded"], listed["branches"]) == (session, 0.25, 1, 1)
    assert answered(up, "sessions", "--group", group, "--unrewarded") == []
    shown = asked(up, "sessions", "--group", group).stdout.split()
    row = shown[shown.index(session) :]
    assert row[:9] == [session, "t", "open", "2", str(listed["tokens"]), "0", "1", "0.25", "0"]


def test_the_newest_of_all_proxies_come_first(up: Up) -> None:
    made = [answered(up, "session", "new", "--task", "order")["session_id"] for _ in range(6)]
    newest = answered(up, "session", "list", "--newest", "--task", "order", "--limit", "4")
    assert [each["session_id"] for each in newest] == made[:1:-1]
    assert {each["session_id"] for each in answered(up, "sessions", "--task", "order")} == set(made)


def test_a_list_goes_on_where_a_proxy_does_not_answer_and_says_so(up: Up) -> None:
    made = [answered(up, "session", "new", "--task", "down")["session_id"] for _ in range(4)]
    with suspended(up.book()["proxies"][1]["pid"]):
        done = asked(up, "session", "list", "--task", "down", "--json")
    listed = {each["session_id"] for each in json.loads(done.stdout)}
    assert (done.returncode, listed) == (0, {name for name in made if name.startswith("s0-")})
    # Where looking for it took long too, that has been said first.
    assert all("proxy 1" in line for line in done.stderr.splitlines())
    assert done.stderr.splitlines()[-1].startswith("rolloutfleet: proxy 1: ")


def test_the_status_counts_everything(up: Up) -> None:
    talked(up, turns=1)
    status = answered(up, "status")
    assert [proxy["ordinal"] for proxy in status["proxies"]] == [0, 1]
    assert status["audit"]["balanced"] is True
    assert status["audit"]["turns"]["created"] > 0
    shown = asked(up, "status")
    assert shown.returncode == 0
    for proxy in up.book()["proxies"]:
        assert proxy["url"] in shown.stdout
    assert "yes" in shown.stdout


def test_a_terminal_without_unicode_is_shown_the_same_in_ascii(up: Up) -> None:
    session, _ = talked(up, turns=2)
    asking = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": "ascii"}
    named = ("--state-dir", str(up.state))
    commands = [("status",), ("sessions",), ("turns", session), ("show", session), ("show", session, "--tokens")]
    for words in [*commands, ("top", "--once"), ("session", "--help")]:
        done = ran(*CLI, *words, *(() if "--help" in words else named), env=asking)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert done.stdout and done.stdout.isascii(), words


def test_top_in_a_pipe_shows_one_interval(up: Up) -> None:
    with Fleet.from_file(up.state) as fleet:  # one of them stood still in a test before
        until(lambda: all(each.state == "ready" for each in fleet.proxies()))
    top = answered(up, "top", "--interval", "200ms")
    stats = answered(up, "status")["stats"]
    assert [row["proxy"] for row in top["proxies"]] == [0, 1]
    for row, said in zip(top["proxies"], stats, strict=True):
        assert (row["version"], row["budget"], row["state"]) == (said["version"], 4 * 2**30, "ready")
        assert row["open"] == said["sessions"]["open"] and row["memory"] > 0
    assert top["fleet"]["sampled"] == 0
    shown = asked(up, "top", "--interval", "200ms", "--sort", "memory")
    assert shown.returncode == 0 and "2 of 2 ready" in shown.stdout and "quits" not in shown.stdout
    assert "\x1b" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--sort", "age"), "--sort: 'age' is not one of proxy, open"),
        (("--interval", "1ms"), "--interval: 1ms is not between 200ms and 1m"),
    ],
)
def test_top_refuses_what_it_does_not_know(up: Up, words: tuple[str, ...], said: str) -> None:
    done = asked(up, "top", *words)
    assert done.returncode == 2 and said in done.stderr


def test_an_export_without_a_file_shows_and_gives_back(up: Up) -> None:
    session, _ = talked(up, turns=2, reward=1.0)
    shown = asked(up, "export", "--session", session)
    assert shown.returncode == 0, shown.stderr
    assert session in shown.stdout
    assert asked(up, "export", "--session", session).stdout == shown.stdout


def test_an_acknowledged_export_is_on_disk_and_gone_from_the_fleet(up: Up, tmp_path: Path) -> None:
    session, turns = talked(up, turns=3, reward=0.5)
    file = tmp_path / "export.json"
    done = asked(up, "export", "--session", session, "-o", str(file), "--ack")
    assert done.returncode == 0, done.stderr
    exported = json.loads(file.read_text())
    assert [turn["turn_id"] for turn in exported["trajectories"][0]["turns"]] == turns
    again = asked(up, "export", "--session", session, "-o", str(tmp_path / "none.json"))
    assert "nothing to export now" in again.stdout
    assert not (tmp_path / "none.json").exists()


def test_safetensors_are_leased_until_they_are_acknowledged(up: Up, tmp_path: Path) -> None:
    session, _ = talked(up, turns=2, reward=0.5)
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
    made = [talked(up, turns=2) for _ in range(4)]
    before = up.book()["proxies"]
    psutil.Process(before[1]["pid"]).kill()
    up.until(lambda: up.book()["proxies"][1]["pid"] != before[1]["pid"])
    up.until(lambda: up.said().count("proxy-1: ready") == 2)
    assert up.book()["proxies"][1]["url"] == before[1]["url"]
    for session, turns in made:
        assert [turn["turn_id"] for turn in answered(up, "turns", session)] == turns


def test_a_prometheus_gets_its_files_and_keeps_a_configuration_of_ones_own(up: Up, tmp_path: Path) -> None:
    folder = tmp_path / "prometheus"
    done = asked(up, "prometheus", str(folder), "--interval", "2s")
    assert done.returncode == 0 and f"--config.file={folder / 'prometheus.yml'}" in done.stdout
    targets = json.loads((folder / "rolloutfleet-targets.json").read_text())
    assert [each["labels"]["pod"] for each in targets] == ["proxy-0", "proxy-1"]
    assert {each["labels"]["fleet"] for each in targets} == {"math"}
    assert "scrape_interval: 2s" in (folder / "prometheus.yml").read_text()
    (folder / "prometheus.yml").write_text("mine")
    (folder / "rolloutfleet-rules.yaml").write_text("old")
    assert asked(up, "prometheus", str(folder)).returncode == 0
    assert (folder / "prometheus.yml").read_text() == "mine"
    assert "alert:" in (folder / "rolloutfleet-rules.yaml").read_text()
    taken = tmp_path / "taken"
    taken.write_text("")
    assert "can't be written" in asked(up, "prometheus", str(taken)).stderr


@pytest.mark.parametrize("ending", ["a key", "a signal"])
def test_top_follows_the_fleet_until_it_is_ended(up: Up, ending: str) -> None:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 130, 0, 0))
    command = [*CLI, "top", "--interval", "200ms", "--state-dir", str(up.state)]
    process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    written = bytearray()

    def shown() -> str:
        """All that was drawn so far. A program that ends waits until its terminal is read."""
        with contextlib.suppress(OSError):  # what a terminal says when its last writer is gone
            if select.select([ours], [], [], 0)[0]:
                written.extend(os.read(ours, 1 << 16))
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", written.decode(errors="ignore"))

    try:
        until(lambda: "2 of 2 ready" in shown())
        os.write(ours, b"sr")
        until(lambda: "backwards" in shown())
        if ending == "a key":
            os.write(ours, b"q")
        else:
            process.send_signal(signal.SIGINT)
        until(lambda: shown() and process.poll() is not None)
        assert process.returncode == (0 if ending == "a key" else 130)
    finally:
        process.kill()
        process.wait()
        os.close(ours)
