"""The way out of the log, as a process ends."""

import subprocess
import sys

from tests.waiting import PATIENCE


def test_a_process_that_just_ends_has_written_all_of_it() -> None:
    program = (
        "import sys\n"
        "from rolloutfleet_proxy.telemetry import logger; from rolloutfleet_proxy.telemetry.log_setup import set_up\n"
        "set_up(format='plain', level='info', ordinal=0)\n"
        "for number in range(1000): logger.info('number %d', number)\n"
        "raise SystemExit(3)"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=PATIENCE)
    assert ended.returncode == 3
    assert [line.split()[-1] for line in ended.stderr.splitlines()] == [str(number) for number in range(1000)]
