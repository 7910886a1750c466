"""One update of examples/tiny_rl and its parity check, against the real engine: what its full runs rest on."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from examples.real_fleet import command_of, environment_of
from examples.tiny_rl.agents import GROUP, GROUPS
from tests.engine.engines import Engine
from tests.engine.sglang.places import Installed
from tests.fleets import ProxyProcess
from tests.integration.proxy.metrics import samples
from tests.paths import ROOT
from tests.processes import Server, free_port
from tests.waiting import SGLANG_START

SECONDS = 2 * SGLANG_START


@pytest.fixture
def fleet_file(real_gateway: Server, real_server: Server, sglang: Installed, tmp_path: Path) -> "Path":
    """The fleet.json of a fleet with one proxy of its own: versions go up here, and other tests have theirs."""
    key = tmp_path / "admin.key"
    key.write_text("an-admin-key-for-tests-alone\n")
    port = free_port()
    book = {
        "name": "tiny-rl",
        "admin_key_file": str(key),
        "gateway": {"url": real_gateway.url},
        "engines": [{"url": real_server.url}],
        "proxies": [{"ordinal": 0, "url": f"http://127.0.0.1:{port}", "pid": 0}],
    }
    (tmp_path / "fleet.json").write_text(json.dumps(book))
    return tmp_path / "fleet.json"


@pytest.fixture
def proxy(fleet_file: Path, real_engine: Engine, sglang: Installed) -> "ProxyProcess":
    book = json.loads(fleet_file.read_text())
    [only] = book["proxies"]
    port = int(only["url"].rpartition(":")[2])
    settings = {
        "fleet": book["name"],
        "model": "tiny",
        "tokenizer": {"path": str(sglang.model("first"))},
        "port": port,
        "state_dir": str(fleet_file.parent / "proxy" / "state"),
        "gateway_url": book["gateway"]["url"],
        "admin_key_file": book["admin_key_file"],
    }
    return ProxyProcess(0, port, fleet_file.parent / "proxy", settings)


@pytest.mark.timeout(SECONDS + SGLANG_START)
def test_what_is_exported_is_what_the_weights_of_each_version_say(
    proxy: ProxyProcess, fleet_file: Path, sglang: Installed, tmp_path: Path
) -> None:
    proxy.start()
    try:
        done, found = trained(sglang, fleet_file, tmp_path, steps=1)
        annotated = samples(proxy).get(
            ("rolloutfleet_requests_total", ("POST", "/sessions/{session_id}/annotations", "200"))
        )
    finally:
        proxy.stop()
    assert done.returncode == 0, done.stdout
    [step] = found["steps"]
    assert annotated == GROUPS * GROUP, "each trajectory, before it was acknowledged"
    assert step["tokens"] > 500 and step["furthest"] < 1e-4
    parity = found["parity"]
    assert parity["furthest"] < 1e-4
    assert parity["forks"] > 0 and parity["cut_turns"] >= 2 and parity["versions"] == 4
    assert parity["marked_turns"] >= 1 and parity["furthest_marked"] > 1e-3
    assert parity["retokenised_rows"] > 0 and float(parity["furthest_retokenised"]) > 1e-2


def trained(
    sglang: Installed, fleet_file: Path, folder: Path, *, steps: int
) -> tuple["subprocess.CompletedProcess[str]", dict[str, Any]]:
    """The trainer in SGLang's environment, as `python -m examples.tiny_rl` starts it."""
    results = folder / "results.json"
    words = ["--fleet", str(fleet_file), "--folder", str(folder), "--results", str(results), "--steps", str(steps)]
    done = subprocess.run(
        command_of(sglang.python, "examples.tiny_rl.trainer", words),
        cwd=ROOT,
        env=environment_of(sglang),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    return done, json.loads(results.read_text()) if results.exists() else {}
