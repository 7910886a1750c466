"""Runs a command in a process group of its own: `python -I launcher.py COMMAND [ARGUMENT]...`.

The group ends with the command, and with the trainer, which holds the other end of the standard input. This file is run
by its path, and needs the standard library alone.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading

NOT_STARTED = 125
"""The exit status where the command could not be started."""
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""
_PR_SET_PDEATHSIG = 1


def main() -> int:
    try:
        command = subprocess.Popen(
            sys.argv[1:],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
        )
    except OSError as error:
        print(error, file=sys.stderr)
        return NOT_STARTED
    threading.Thread(target=_end_with_input, args=(command,), daemon=True).start()
    status = command.wait()
    _signal(command, signal.SIGKILL)  # what it left behind
    return status if status >= 0 else 128 - status


def _end_with_parent() -> None:
    """For a launcher that is killed: nobody else would end the command then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_with_input(command: "subprocess.Popen[bytes]") -> None:
    os.read(0, 1)
    _signal(command, signal.SIGTERM)
    try:
        command.wait(GRACE)
    except subprocess.TimeoutExpired:
        _signal(command, signal.SIGKILL)


def _signal(command: "subprocess.Popen[bytes]", what: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(command.pid, what)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer says when to end
    sys.exit(main())
