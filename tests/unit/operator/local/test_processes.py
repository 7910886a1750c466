"""What the processes of a local fleet are started with."""

import os

from rolloutfleet_operator.local.processes import child_environment


def test_our_own_variables_do_not_reach_the_children() -> None:
    made = child_environment({"ROLLOUTFLEET_PORT": "1", "PATH": "/bin", "NO_PROXY": "a"})
    assert "ROLLOUTFLEET_PORT" not in made
    assert made["PATH"] == "/bin"
    assert made["NO_PROXY"] == "a,127.0.0.1,localhost"
    assert os.environ.get("ROLLOUTFLEET_PORT") is None
