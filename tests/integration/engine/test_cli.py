"""The command: it teaches, says when it is ready, and what is wrong."""

import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from tests.waiting import PATIENCE

COMMAND = [sys.executable, "-m", "rolloutfleet_engine"]


def test_help_teaches() -> None:
    said = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=PATIENCE, check=True).stdout
    for name in ("--token-latency", "--noncanonical", "--faults", "examples:", "curl localhost:30000/counters"):
        assert name in said


def test_one_line_says_that_it_is_ready_and_it_stops_when_told() -> None:
    arguments = ["--port", "0", "--served-model-name", "small", "--faults", '[{"kind": "nan"}]']
    with subprocess.Popen([*COMMAND, *arguments], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("rolloutfleet-engine ready on http://127.0.0.1:")
            with urllib.request.urlopen(f"{line.split()[-1]}/faults", timeout=PATIENCE) as reply:
                assert json.load(reply)["faults"][0]["kind"] == "nan"
            os.kill(process.pid, signal.SIGTERM)
            assert process.stdout.read() == ""
            assert process.wait(PATIENCE) == 0, "it stopped as it was told"
        finally:
            process.kill()


def test_a_taken_port_is_said() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        arguments = ["--port", str(taken.getsockname()[1])]
        ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    assert "is the port taken?" in ended.stderr


def test_a_model_without_a_tokenizer_is_said(tmp_path: Path) -> None:
    arguments = ["--port", "0", "--model-path", str(tmp_path)]
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 1
    assert "has no tokenizer.json" in ended.stderr


def test_wrong_faults_are_said() -> None:
    ended = subprocess.run(
        [*COMMAND, "--faults", '[{"kind": "x"}]'], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert ended.returncode == 2
    assert "unknown kind `x`" in ended.stderr


def test_a_file_of_cues_that_it_cannot_read_is_said(tmp_path: Path) -> None:
    arguments = ["--cues", str(tmp_path / "none.json")]
    ended = subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert "none.json" in ended.stderr.splitlines()[-1]
