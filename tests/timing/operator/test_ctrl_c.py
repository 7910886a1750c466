"""Ctrl-C ends a local fleet within seconds, whenever it comes."""

import time
from pathlib import Path

import pytest
from tests.integration.operator.ending import FLEET, assert_ended
from tests.local_fleets import running


@pytest.mark.parametrize("after", [0.05, 0.4, 0.8, 1.1, 1.4, 1.7, 2.2, 3.0, 5.0])
def test_ctrl_c_in_the_first_seconds_ends_everything(tmp_path: Path, after: float) -> None:
    """Whatever is under way then: imports, the first processes, the proxies' start, all of it up."""
    with running(tmp_path, FLEET.replace("replicas: 0", "replicas: 2")) as up:
        time.sleep(after)
        up.ctrl_c()
        assert_ended(up, within=5)
