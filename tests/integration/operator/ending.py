"""A small local fleet, and its end by Ctrl-C."""

import re
import signal
from typing import Final

from tests.local_fleets import Up

FLEET: Final = """\
apiVersion: rolloutfleet.dev/v1alpha1
kind: RolloutFleet
metadata: {name: math}
spec: {model: simulated, engine: {replicas: 2}, proxies: {replicas: 0}}
"""
_OURS: Final = re.compile(r'File "[^"]*/rolloutfleet\w*/')
"""A line of a traceback, in a file of ours."""


def assert_ended(up: Up, *, within: float) -> None:
    """All of it has ended in time, and said nothing of an error."""
    status = up.process.wait(within)
    # Python itself, before anything of ours: it ends with 1 and its own traceback.
    if "Traceback" not in up.said() or _OURS.search(up.said()):
        assert status in (0, 130, -signal.SIGINT)
        assert "Traceback" not in up.said()
    assert "rolloutfleet: " not in up.said(), "an error"
    assert up.left() == []
