"""The engines of a gateway in a pod, as the name service has them: those to begin with, and those to let go of.

The gateway's Python gets this file as text (`python3 -c`), as its image holds the stock gateway alone. It looks the
engines' headless Service up, starts the gateway with what it finds, and stays beside it: an address that is no engine's
of this fleet any more may soon be one of another fleet's. So the gateway needs no operator, neither to start nor to be
safe. New engines are the operator's to add.
"""

import ctypes
import json
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

LOOK = 5.0
"""Seconds between two looks."""
GONE = 7
"""So many looks in a row that do not find an engine show that it is gone: name services cache an answer for 30 s."""
PATIENCE = 10.0
"""Seconds that the name service has at the start, and the gateway for an answer."""
_PR_SET_PDEATHSIG = 1


def lookup(host: str, port: int) -> frozenset[str] | None:
    """The addresses of that name as URLs, none where there is no such name; None where nobody answers."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except socket.gaierror as error:
        return frozenset() if error.errno == socket.EAI_NONAME else None
    hosts = {str(address[0]) for *_, address in found}
    return frozenset(f"http://[{each}]:{port}" if ":" in each else f"http://{each}:{port}" for each in hosts)


def at_start(host: str, port: int) -> frozenset[str]:
    """Those to begin with; none where nobody answers in time."""
    until = time.monotonic() + PATIENCE
    while (found := lookup(host, port)) is None and time.monotonic() < until:
        time.sleep(0.5)
    return found or frozenset()


class Absences:
    """How many looks in a row did not find each of the engines that the gateway lists.

    One that was never found is not counted: it is new, or the name service is not the one that it should be.
    """

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known
        self._missed: dict[str, int] = {}

    def gone(self, listed: frozenset[str], found: frozenset[str] | None) -> frozenset[str]:
        """The engines to let go of, after one more look; one that nobody answered says nothing."""
        if found is not None:
            self._known = (self._known & listed) | found
            self._missed = {url: self._missed.get(url, 0) + 1 for url in (listed & self._known) - found}
        return frozenset(url for url, missed in self._missed.items() if missed >= GONE)


class Gateway:
    """The control plane of a gateway; its key is read anew for each request."""

    def __init__(self, url: str, key: Path) -> None:
        self._url, self._key = url, key
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is this pod's

    def listed(self) -> dict[str, str]:
        """Ids by URL. Raises OSError and ValueError."""
        return dict(_urls(self._ask("GET", "/workers")))

    def remove(self, id: str) -> None:
        """Raises OSError."""
        self._ask("DELETE", f"/workers/{id}")

    def _ask(self, method: str, path: str) -> bytes:
        headers = {"authorization": f"Bearer {self._key.read_text().strip()}"}
        request = urllib.request.Request(f"{self._url}{path}", method=method, headers=headers)
        with self._opener.open(request, timeout=PATIENCE) as answer:
            content: bytes = answer.read()
        return content


def _urls(answer: bytes) -> Iterator[tuple[str, str]]:
    try:
        for worker in json.loads(answer)["workers"]:
            if worker.get("status") != "draining":  # it is being let go of
                yield worker["url"].rstrip("/"), worker["id"]
    except (KeyError, TypeError, AttributeError):
        raise ValueError("that is no list of workers") from None


def let_go(host: str, port: int, gateway: Gateway, known: frozenset[str]) -> None:
    """Look and look again; what can't be done now is due at the next look."""
    absences = Absences(known)
    while True:
        time.sleep(LOOK)
        try:
            listed = gateway.listed()
            for url in absences.gone(frozenset(listed), lookup(host, port)):
                gateway.remove(listed[url])
                print(f"{url} is no engine of this fleet any more", file=sys.stderr, flush=True)
        except Exception as error:  # its text may quote the key
            print(f"the engines were not looked through: {type(error).__name__}", file=sys.stderr, flush=True)


def main() -> None:
    """`HOST PORT GATEWAY KEY-FILE COMMAND …`: becomes the command, with the engines' addresses added to its words."""
    host, port, url, key, *command = sys.argv[1:]
    found = at_start(host, int(port))
    parent = os.getpid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() == parent:
            let_go(host, int(port), Gateway(url, Path(key)), found)
        os._exit(0)
    os.execvp(command[0], [*command, *(["--worker-urls", *sorted(found)] if found else [])])


if __name__ == "__main__":
    main()
