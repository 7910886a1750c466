"""The parent as a process: small, and it listens where it is told to."""

import socket
import subprocess
import sys

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_proxy.process.supervisor import listen

HEAVY = {
    "pydantic",
    "fastapi",
    "starlette",
    "uvicorn",
    "aiohttp",
    "msgspec",
    "tokenizers",
    "torch",
    "asyncio",
    "logging",
}
MOST_MEGABYTES = 6.0
"""Over the interpreter alone."""
RSS = "import sys; print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_the_parent_imports_next_to_nothing() -> None:
    modules = run("import sys, rolloutfleet_proxy.cli; print(*{name.split('.')[0] for name in sys.modules})").split()
    assert HEAVY.isdisjoint(modules)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_parent_takes_a_few_megabytes_more_than_the_interpreter() -> None:
    more = int(run(f"import rolloutfleet_proxy.cli; {RSS}")) - int(run(RSS))
    assert more / 1024 < MOST_MEGABYTES


def test_a_name_is_listened_to_at_every_address_it_has() -> None:
    sockets = listen("localhost", 0)
    assert sockets
    for each in sockets:
        with socket.create_connection(each.getsockname()[:2], timeout=PATIENCE):
            pass
        each.close()


def test_a_port_that_is_taken_is_an_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            listen("127.0.0.1", taken.getsockname()[1])
