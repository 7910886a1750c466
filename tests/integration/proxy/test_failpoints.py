"""A process can be made to stop at any place by a file, and says so by another."""

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE, until

from rolloutfleet_proxy.failpoints import ANY, HELD, MID_ACK, MID_EXPORT, VARIABLE

COMES_BY = f"""
from rolloutfleet_proxy import failpoints
failpoints.reach({MID_EXPORT!r})
failpoints.reach({MID_ACK!r})
"""


def test_a_process_waits_where_a_file_says_so_and_goes_on_when_it_is_gone(tmp_path: Path) -> None:
    (tmp_path / MID_ACK).touch()
    with subprocess.Popen(
        [sys.executable, "-c", COMES_BY], env=os.environ | {VARIABLE: f"{ANY}@{tmp_path}"}
    ) as process:
        said = tmp_path / f"{MID_ACK}{HELD}"
        assert until(lambda: said.exists() and said.read_text()) == str(process.pid)
        assert process.poll() is None
        assert not (tmp_path / f"{MID_EXPORT}{HELD}").exists()
        (tmp_path / MID_ACK).unlink()
        assert process.wait(PATIENCE) == 0
