"""An engine of a local fleet that is stuck is ended and started again, after a minute."""

import os
import signal
import time
from pathlib import Path

import httpx
from tests.integration.operator.ending import FLEET
from tests.local_fleets import running

from rolloutfleet_operator.local.fleet import PROBE_TIMEOUT, SILENT_INTERVAL, SILENT_PROBES

MINUTE = SILENT_PROBES * (SILENT_INTERVAL + PROBE_TIMEOUT)


def test_an_engine_that_answers_nothing_for_a_minute_is_started_again(tmp_path: Path) -> None:
    with running(tmp_path, FLEET) as up:
        [engine, *_] = up.book()["engines"]
        os.kill(up.engine(engine["url"]).pid, signal.SIGSTOP)
        time.sleep(MINUTE)
        up.until_said(f"engine-0: has not answered for {MINUTE:.0f} s")
        up.until(lambda: up.said().count("engine-0: ready") == 2)
        assert "engine-1: has not answered" not in up.said()
        assert httpx.get(f"{engine['url']}/health", trust_env=False).status_code == 200
