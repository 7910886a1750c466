"""Trainers in processes of their own: what is to be killed, or told to end by Ctrl-C."""

import json
import subprocess
import sys
import textwrap

from tests.fleets import Fleet
from tests.integration.client.fleet.conftest import key_file
from tests.waiting import PATIENCE

PRELUDE = """
import json, signal, sys, threading, time
from rolloutfleet import Fleet
from rolloutfleet.fleet.blocking import LoopThread
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has it ignored by what it runs in the background
fleet = Fleet.from_url(sys.argv[1], admin_key_file=sys.argv[2], progress=False)
def say(**what):
    print(json.dumps(what), flush=True)
def waits(also):
    frame = sys._current_frames()[threading.main_thread().ident]
    while frame is not None and frame.f_code is not LoopThread.run.__code__:
        frame = frame.f_back
    return frame is not None and also()
def say_once_it_waits(also=lambda: True):  # the main thread, in a call of the fleet
    def look():
        while not waits(also):
            time.sleep(0.01)
        say(waits=True)
    threading.Thread(target=look, daemon=True).start()
"""


class Trainer:
    """A trainer in a process of its own, which says things on lines of JSON."""

    def __init__(self, fleet: Fleet, code: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + textwrap.dedent(code), fleet.proxy.url, str(key_file(fleet))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> dict[str, object]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(self.process.communicate()[1])
        said: dict[str, object] = json.loads(line)
        return said

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, errors
