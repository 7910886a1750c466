"""The parent as a process: small, and it listens where it is told to."""

import socket

import pytest
from tests.apart import run
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


def test_the_parent_imports_next_to_nothing() -> None:
    modules = run("import rolloutfleet_proxy.cli", "print(*{name.split('.')[0] for name in sys.modules})")
    assert HEAVY.isdisjoint(modules)


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
