"""An operator that is told to stop while little moves."""

import signal
import time
from pathlib import Path

from tests.cluster.apiserver import ApiServer
from tests.cluster.operators import running
from tests.processes import free_port
from tests.waiting import PATIENCE


def test_held_up_on_its_way_out_it_ends_all_the_same_as_it_should(
    apiserver: ApiServer, namespace: str, tmp_path: Path
) -> None:
    """By an API server that is silent, and by a machine that has no time for it."""
    with running(apiserver, tmp_path, free_port(), namespace, f"--namespace={namespace}") as operator:
        operator.until(lambda: "acts now" in operator.said())
        with apiserver.silent():
            operator.process.send_signal(signal.SIGTERM)
            time.sleep(2)
            operator.process.send_signal(signal.SIGSTOP)
            time.sleep(11)
            operator.process.send_signal(signal.SIGCONT)
        assert operator.process.wait(PATIENCE) == 0
