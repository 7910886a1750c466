"""Calls to a fleet's native API, with its errors as a person reads them."""

import copy
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self, TypeVar

import httpx

from rolloutfleet.cli.failures import CommandFailed, failed, failed_by, warn_unless_all_failed
from rolloutfleet.fleet.exceptions import FleetError
from rolloutfleet.fleet.transport import client_options, first_connected, send, stream
from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.wire import JSON_MEDIA_TYPE

T = TypeVar("T")

ANSWER_TIMEOUT = 120.0
CONNECT_TIMEOUT = 5.0


class NativeApi:
    """A fleet's calls as the command line makes them.

    What has one owner can be asked of any proxy, which passes it on; the next is tried when one is down. What
    each proxy knows of itself alone is asked of all.
    """

    def __init__(self, where: Whereabouts) -> None:
        self._urls = where.urls
        self._all_known = where.book is not None
        self._client = httpx.Client(
            **client_options(where.admin_key, where.urls, timeout=ANSWER_TIMEOUT, connect=CONNECT_TIMEOUT)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def proxies(self) -> list[dict[str, Any]]:
        """Ordinal, url and state of every proxy. Raises CommandFailed."""
        found: list[dict[str, Any]] = self.get("/proxies")["proxies"]
        return found

    def each(self) -> Iterator["NativeApi"]:
        """Every proxy by itself."""
        urls = self._urls if self._all_known else tuple(proxy["url"] for proxy in self.proxies())
        for url in urls:
            one = copy.copy(self)
            one._urls, one._all_known = (url,), True
            yield one

    def from_each(self, path: str) -> list[Any]:
        """The answers of all proxies that answer; the others are named on the error output.

        Raises CommandFailed where none does.
        """
        answers: list[Any] = []
        problems: list[CommandFailed] = []
        for proxy in self.each():
            try:
                answers.append(proxy.get(path))
            except CommandFailed as error:
                problems.append(error)
        warn_unless_all_failed(problems, answered=bool(answers))
        return answers

    def get(self, path: str, **parameters: str | int | None) -> Any:
        """The JSON answer. Raises CommandFailed."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return _parsed(self.send("GET", path, params=given))

    def post(self, path: str, body: object) -> Any:
        """The JSON answer. Raises CommandFailed."""
        return _parsed(self.send("POST", path, json=body))

    def pages(self, path: str, **parameters: str | int | None) -> Iterator[dict[str, Any]]:
        """The pages of a list, each asked for as it is wanted. Raises CommandFailed."""
        cursor: str | None = None
        while True:
            page: dict[str, Any] = self.get(path, cursor=cursor, **parameters)
            yield page
            cursor = page.get("cursor")
            if not cursor:
                return

    def fetch(self, path: str, into: BinaryIO) -> None:
        """Write the answer to a file as it comes. Raises CommandFailed."""

        def copied(url: str) -> None:
            with stream(self._client, "GET", f"{url}{path}") as answer:
                for piece in answer.iter_raw():
                    try:
                        into.write(piece)
                    except OSError as error:
                        raise failed(f"{path} can't be kept on this machine: {error.strerror}") from None

        self._first(copied)

    def send(self, method: str, path: str, *, accept: str = JSON_MEDIA_TYPE, **request: Any) -> httpx.Response:
        """The answer, read whole. Raises CommandFailed for one that is an error, or for none."""
        headers = {"accept": accept}
        return self._first(lambda url: send(self._client, method, f"{url}{path}", headers=headers, **request))

    def _first(self, call: Callable[[str], T]) -> T:
        try:
            return first_connected(self._urls, call)
        except FleetError as error:
            raise failed_by(error) from None


def _parsed(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise failed(f"{answer.request.url} answered with something that is no JSON; is it a proxy?") from None
