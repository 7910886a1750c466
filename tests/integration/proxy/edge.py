"""Connections as a proxy's clients may hold them, before it knows who they are."""

import contextlib
import http.client
import json
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from tests.fleets import Fleet, ProxyProcess, running_fleet
from tests.waiting import PATIENCE

DESCRIPTORS = 256
IDLE = 300


@contextlib.contextmanager
def fleet_of_few_descriptors(folder: Path) -> Iterator[Fleet]:
    """Two proxies, whose logs show no error in the end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, hard))
    try:
        with running_fleet(folder, proxies=2) as running:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            yield running
            for proxy in running.proxies:
                assert "Traceback" not in proxy.log.read_text()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connected(port: int, sent: bytes = b"") -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE)
    connection.sendall(sent)
    return connection


def answer(connection: socket.socket) -> tuple[int, dict[str, Any]]:
    """The status and the error of what comes."""
    with contextlib.closing(http.client.HTTPResponse(connection, method="POST")) as response, connection:
        response.begin()
        error: dict[str, Any] = json.loads(response.read())["error"]
    return response.status, error


def begun(port: int, path: str, key: str, *, body: bytes = b"{", method: str = "POST") -> socket.socket:
    """A request whose body does not end."""
    head = f"{method} {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\ncontent-length: 1000\r\n\r\n"
    return connected(port, head.encode() + body)


@contextlib.contextmanager
def idle_connections(proxy: ProxyProcess, *, answered_within: float) -> Iterator[None]:
    """More of them than it has descriptors, while /health is asked now and then."""
    kinds = (b"", b"GET /he", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    with contextlib.ExitStack() as stack:
        for number in range(IDLE):
            stack.enter_context(connected(proxy.port, kinds[number % 3]))
            if number % 50 == 49:
                assert httpx.get(f"{proxy.url}/health", timeout=answered_within).status_code == 200
        yield
