"""The parent as a process is small."""

import sys

import pytest
from tests.apart import run

MOST_MEGABYTES = 6.0
"""Over the interpreter alone."""
RSS = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_parent_takes_a_few_megabytes_more_than_the_interpreter() -> None:
    (whole,), (alone,) = run("import rolloutfleet_proxy.cli", RSS), run(RSS)
    more = int(whole) - int(alone)
    assert more / 1024 < MOST_MEGABYTES
