"""Time for which a proxy stood still makes no session stale."""

import signal
import time
from pathlib import Path

import psutil
from tests.fleets import running_fleet
from tests.integration.proxy.cleaning import CHAT

from rolloutfleet_proxy.wiring import LONGEST_STEP, TICK_INTERVAL

STALE_AFTER = 3 * (LONGEST_STEP + TICK_INTERVAL)
FROZEN = STALE_AFTER + LONGEST_STEP


def test_a_session_is_there_after_its_proxy_stood_still_for_longer_than_it_may_be_idle(tmp_path: Path) -> None:
    with running_fleet(tmp_path, settings={"sessions": {"cleanup_interval": 0.2}}) as fleet:
        session = fleet.proxy.start_session(stale_after=STALE_AFTER)
        assert session.raw_chat(CHAT).status_code == 200
        assert fleet.proxy.process is not None
        parent = psutil.Process(fleet.proxy.process.pid)
        processes = [parent, *parent.children(recursive=True)]
        for process in processes:
            process.send_signal(signal.SIGSTOP)
        time.sleep(FROZEN)
        for process in reversed(processes):
            process.send_signal(signal.SIGCONT)
        for _ in range(5):
            time.sleep(0.5)
            assert session.show()["state"] == "open"
        assert session.raw_chat(CHAT).status_code == 200
