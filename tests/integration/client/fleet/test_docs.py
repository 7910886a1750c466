"""The snippets of docs/trainer.md and of docs/start.md run in their order against a fleet, and so do the loop of
docs/trainers.md and the example."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleets import Fleet as Running
from tests.fleets import running_fleet
from tests.integration.client.fleet.conftest import key_file
from tests.paths import ROOT
from tests.waiting import START

PAGE = ROOT / "docs" / "trainer.md"


@pytest.fixture
def quickstart(tmp_path: Path) -> Iterator[Running]:
    """A fleet that looks like `rolloutfleet up examples/quickstart/fleet.yaml`, from the test's folder."""
    with running_fleet(
        tmp_path / "fleet", proxies=2, engines=2, engine_options=("--weight-version", "0"), engine_key="the engines'"
    ) as running:
        book = {
            "name": "quickstart",
            "admin_key_file": str(key_file(running)),
            "engine_key_file": str(tmp_path / "fleet" / "engine.key"),
            "gateway": {"url": running.gateway.url},
            "engines": [{"url": engine.url} for engine in running.engines],
            "proxies": [{"ordinal": proxy.ordinal, "url": proxy.url, "pid": 1} for proxy in running.proxies],
        }
        folder = tmp_path / ".rolloutfleet" / "quickstart"
        folder.mkdir(parents=True)
        (folder / "fleet.json").write_text(json.dumps(book))
        yield running


def snippets(text: str) -> str:
    """The page's Python, as it is printed."""
    return "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))


def ran(folder: Path, code: str) -> "subprocess.CompletedProcess[str]":
    """A trainer's process, to its end."""
    script = folder / "page.py"
    script.write_text(code)
    return subprocess.run([sys.executable, str(script)], cwd=folder, capture_output=True, text=True, timeout=START)


def test_the_page_runs(quickstart: Running, tmp_path: Path) -> None:
    done = ran(tmp_path, snippets(PAGE.read_text()))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens,") == 8
    assert "\nsession_closed\n" in done.stdout
    assert "run 1 " in done.stdout
    audit = quickstart.proxy.audit()
    assert audit["turns"]["leased"] == audit["turns"]["live"] == 0
    assert [proxy.stats()["version"] for proxy in quickstart.proxies] == [2, 2]


def test_the_start_page_runs_from_an_agent_to_a_step(quickstart: Running, tmp_path: Path) -> None:
    done = ran(tmp_path, snippets((ROOT / "docs" / "start.md").read_text()))
    assert done.returncode == 0, done.stderr
    assert "'groups': 4, 'episodes': 16" in done.stdout
    assert done.stdout.count("tokens, advantage") >= 16
    audits = [proxy.audit() for proxy in quickstart.proxies]
    assert sum(audit["turns"]["acknowledged"] for audit in audits) == 32
    assert [audit["turns"]["leased"] + audit["turns"]["live"] for audit in audits] == [0, 0]
    assert [proxy.stats()["version"] for proxy in quickstart.proxies] == [1, 1]


def test_the_loop_in_forty_lines_trains_and_acknowledges(quickstart: Running, tmp_path: Path) -> None:
    _, _, section = (ROOT / "docs" / "trainers.md").read_text().partition("\n## Write your own in forty lines\n")
    code = snippets(section)
    assert len([line for line in code.splitlines() if line]) <= 40
    done = ran(tmp_path, code)
    assert done.returncode == 0, done.stderr
    left_out = [int(found) for found in re.findall(r"^(\d+) of 12 left out$", done.stdout, re.MULTILINE)]
    assert len(left_out) == 2
    assert done.stdout.count("trained, advantage") == 24 - sum(left_out) > 0
    audit = quickstart.proxies[0].audit(), quickstart.proxies[1].audit()
    assert [each["turns"]["leased"] + each["turns"]["live"] for each in audit] == [0, 0]
    assert [proxy.stats()["version"] for proxy in quickstart.proxies] == [2, 2]


LEFT_BEHIND = """
import os, signal
for task in range(3):
    with fleet.start_session(f"late-{task}") as session:
        run_agent(session)
run_agent(fleet.start_session("late-open"))
print("left")
os.kill(os.getpid(), signal.SIGKILL)
"""
TAKEN = """
with fleet.export() as export:
    print(sorted(each.task_id for each in export))
"""


def test_the_snippet_after_a_crash_loses_nothing_that_the_checkpoint_stands_on(
    quickstart: Running, tmp_path: Path
) -> None:
    before, _, rest = PAGE.read_text().partition("\n## After a crash\n")
    after, _, _ = rest.partition("\n## ")
    assert "recover(" in after
    crashed = ran(tmp_path, snippets(before) + LEFT_BEHIND)
    assert (crashed.returncode, crashed.stdout.endswith("left\n")) == (-9, True), crashed.stderr
    done = ran(tmp_path, snippets(after) + TAKEN)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[0].startswith("run 1 {")
    assert "'ended_sessions': 1" in said[0]
    # (2 + 1 + 1) * 8, less the batch that was trained and the four that are held: more than may run at once.
    assert said[0].endswith("room for 16")
    assert said[1] == str(["late-0", "late-1", "late-2", "late-open"])
    assert all(proxy.audit()["turns"]["discarded"] == {} for proxy in quickstart.proxies)


def test_the_example_learns_also_while_a_proxy_is_killed(quickstart: Running, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "examples.counting", "--fleet", str(tmp_path / ".rolloutfleet" / "quickstart")]
    said = ""
    with subprocess.Popen([*command, "--steps", "8"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said += line
            if line.startswith("version 2:"):
                quickstart.proxies[1].kill()
            if line.startswith("version 5:"):
                quickstart.proxies[1].start()
    assert process.returncode == 0, said
    assert said.count("trajectories,") == 8
    assert re.search(r"mean reward [0-9.]+ in the first half, [0-9.]+ in the second", said), said
    rewards = [float(each) for each in re.findall(r"^version \d+: reward ([0-9.]+) ", said, re.MULTILINE)]
    # The first two batches are begun before anything is learned; later ones are curious now and then.
    assert sum(rewards[4:]) / 4 > sum(rewards[:2]) / 2, said
    audits = [proxy.audit() for proxy in quickstart.proxies]
    assert all(audit["balanced"] for audit in audits)
    assert [audit["turns"]["leased"] for audit in audits] == [0, 0]
