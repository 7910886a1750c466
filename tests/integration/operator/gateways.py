"""A gateway for one test, and what it says of itself."""

import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import httpx
from tests.gateways import GatewayCommand, gateway_command
from tests.waiting import START, eventually


@contextmanager
def started(
    engine_urls: Sequence[str], flags: Mapping[str, object], *, without: Collection[str] = ()
) -> Iterator[tuple[GatewayCommand, subprocess.Popen[bytes]]]:
    command = gateway_command(engine_urls, flags)
    words = [word for word in command.argv if word not in without]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield command, process
    finally:
        process.kill()
        process.wait()


async def until_status(url: str, status: int, *, within: float = START) -> None:
    """Until that is what is answered there."""
    await eventually(lambda: _status(url) == status, seconds=within)


def _status(url: str) -> int | None:
    try:
        return httpx.get(url, trust_env=False).status_code
    except httpx.TransportError:
        return None
