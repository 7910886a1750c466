"""What a unit test may not do, held while it runs: it would depend on the machine, or leave something on it."""

import socket
import sys
from typing import Any, Final, NoReturn

FORBIDDEN: Final = {
    "subprocess.Popen": "starts a process",
    "os.fork": "starts a process",
    "os.forkpty": "starts a process",
    "os.posix_spawn": "starts a process",
}
_NETWORKS: Final = (socket.AF_INET, socket.AF_INET6)


class Forbidden(Exception):
    """A unit test left its process."""


class Guard:
    """Raises what is forbidden while `test` names one. There is one a process, since Python keeps its hook for ever."""

    def __init__(self) -> None:
        self.test: str | None = None
        self.found: list[str] = []
        """What was forbidden: whoever catches the exception does not hide it."""
        sys.addaudithook(self._hook)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if self.test is None:
            return
        what = FORBIDDEN.get(event)
        if event in ("socket.bind", "socket.connect") and args[0].family in _NETWORKS:
            what = f"uses the network, {args[1]}"
        if what is not None:
            self.refuse(what)

    def refuse(self, what: str) -> NoReturn:
        self.note(what)
        raise Forbidden(self.found[-1])

    def note(self, what: str) -> None:
        """Fail the test, which goes on until its end."""
        self.found.append(f"a unit test {what}: tests that do belong in another folder, see CONTRIBUTING.md")


GUARD: Final = Guard()
