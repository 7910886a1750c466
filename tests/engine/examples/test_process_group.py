"""Weights over a process group of gloo: the real engine has them afterwards as if it had loaded them from disk."""

import json
import subprocess
from pathlib import Path

import pytest
from examples.real_fleet import command_of, environment_of
from tests.engine.engines import Engine
from tests.engine.sglang.places import Installed
from tests.engine.test_capture import version_one_again as version_one_again
from tests.engine.test_versions import OTHER_WEIGHTS, SAME_WEIGHTS, furthest, judged, new_prompt
from tests.fleets import ProxyProcess
from tests.paths import ROOT
from tests.processes import Server, free_port
from tests.waiting import SGLANG_START


@pytest.fixture
def fleet_file(real_proxy: ProxyProcess, real_server: Server, tmp_path: Path) -> Path:
    key = tmp_path / "admin.key"
    key.write_text(real_proxy.key)
    book = {
        "name": "real",
        "admin_key_file": str(key),
        "gateway": {"url": "http://127.0.0.1:9"},
        "engines": [{"url": real_server.url}],
        "proxies": [{"ordinal": 0, "url": real_proxy.url, "pid": 0}],
    }
    (tmp_path / "fleet.json").write_text(json.dumps(book))
    return tmp_path / "fleet.json"


@pytest.mark.timeout(2 * SGLANG_START)
async def test_weights_over_a_process_group_are_those_of_the_disk(
    fleet_file: Path,
    real_proxy: ProxyProcess,
    real_engine: Engine,
    sglang: Installed,
    version_one_again: None,
) -> None:
    prompt, text = new_prompt(), new_prompt()
    first = await judged(real_engine, prompt, text)
    update = {"model_path": str(sglang.model("second")), "weight_version": "2"}
    assert (await real_engine.post("/update_weights_from_disk", update)).status == 200
    second = await judged(real_engine, prompt, text)
    back = {"model_path": str(sglang.model("first")), "weight_version": "1"}
    assert (await real_engine.post("/update_weights_from_disk", back)).status == 200

    words = [
        *("--fleet", str(fleet_file), "--weights", str(sglang.model("second")), "--version", "5"),
        *("--address", f"127.0.0.1:{free_port()}", "--bucket-bytes", "200000"),
    ]
    done = subprocess.run(
        command_of(sglang.python, "examples.trainers.process_group", words),
        cwd=ROOT,
        env=environment_of(sglang),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SGLANG_START,
    )
    assert done.returncode == 0, done.stdout
    assert (await real_engine.get("/model_info")).body["weight_version"] == "5"
    now = await judged(real_engine, prompt, text)
    assert furthest(now, second) < SAME_WEIGHTS
    assert furthest(now, first) > OTHER_WEIGHTS
    with real_proxy.admin() as admin:
        known = admin.get("/version").raise_for_status().json()
    assert (known["version"], known["paused"]) == (5, False)
