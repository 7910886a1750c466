"""Runs tests/engine/torch where PyTorch is: too large for the environment of the other tests, and SGLang's has it."""

import importlib.util
import json
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.engine.sglang.places import Installed
from tests.fleets import running_fleet
from tests.paths import ROOT

HERE = Path(__file__).parents[1] / "torch"
SECONDS = 600
PROXIES = "ROLLOUTFLEET_TEST_PROXIES"
RUN = "import sys; sys.path.append(sys.argv.pop(1)); import pytest; sys.exit(pytest.main(sys.argv[1:]))"
"""Of what that environment has not, pytest and its plugins come from this one."""


@pytest.fixture(scope="module")
def proxies(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with running_fleet(tmp_path_factory.mktemp("torch"), proxies=2) as fleet:
        yield json.dumps({"urls": [proxy.url for proxy in fleet.proxies], "key": fleet.proxy.key})


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="they run here, where PyTorch is")
@pytest.mark.timeout(SECONDS + 60)
def test_with_torch(sglang: Installed, proxies: str, tmp_path: Path) -> None:
    """One process runs them all: it takes seconds to load PyTorch."""
    ours = [str(ROOT / name) for name in ("client", "proxy", "operator", "engine", ".")]
    options = ["-q", "-rP", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    done = subprocess.run(
        [str(sglang.python), "-c", RUN, sysconfig.get_path("purelib"), *options, str(HERE)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(ours), "OMP_NUM_THREADS": "1", PROXIES: proxies},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stdout
    print(done.stdout)
