"""The snippets of docs/trainer.md run in their order against a fleet, and so does the example."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.capture.fleets import Fleet as Running
from tests.capture.fleets import running_fleet
from tests.client.fleet.conftest import key_file

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "trainer.md"


@pytest.fixture
def quickstart(tmp_path: Path) -> Iterator[Running]:
    """A fleet that looks like `rolloutfleet up examples/quickstart/fleet.yaml`, from the test's folder."""
    with running_fleet(tmp_path / "fleet", proxies=2, engines=2, engine_options=("--weight-version", "0")) as running:
        book = {
            "name": "quickstart",
            "admin_key_file": str(key_file(running)),
            "gateway": {"url": running.gateway.url},
            "engines": [{"url": engine.url} for engine in running.engines],
            "proxies": [{"ordinal": proxy.ordinal, "url": proxy.url, "pid": 1} for proxy in running.proxies],
        }
        folder = tmp_path / ".rolloutfleet" / "quickstart"
        folder.mkdir(parents=True)
        (folder / "fleet.json").write_text(json.dumps(book))
        yield running


def test_the_page_runs(quickstart: Running, tmp_path: Path) -> None:
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    script = tmp_path / "page.py"
    script.write_text("\n".join(snippets))
    done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("tokens,") == 8
    assert "\nsession_closed\n" in done.stdout
    assert "run 1 " in done.stdout
    audit = quickstart.proxy.audit()
    assert audit["turns"]["leased"] == audit["turns"]["live"] == 0
    assert [proxy.stats()["version"] for proxy in quickstart.proxies] == [2, 2]


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
    found = re.search(r"mean reward ([0-9.]+) in the first half, ([0-9.]+) in the second", said)
    assert found is not None, said
    assert float(found[2]) > float(found[1]), said
    audits = [proxy.audit() for proxy in quickstart.proxies]
    assert all(audit["balanced"] for audit in audits)
    assert [audit["turns"]["leased"] for audit in audits] == [0, 0]
