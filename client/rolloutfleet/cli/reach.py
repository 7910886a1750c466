"""Calls to a fleet's native API, with its errors as a person reads them."""

import copy
from collections.abc import Iterator
from types import TracebackType
from typing import Any, BinaryIO, Self

import httpx

from rolloutfleet.cli.failures import CommandFailed, failed, warn, wrong
from rolloutfleet.fleet.exceptions import refusal
from rolloutfleet.fleet.transport import client_options
from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.http_failures import failure_in_words

TIMEOUT = 120.0


class Fleet:
    """A fleet as the command line sees it.

    What has one owner can be asked of any proxy, which passes it on; the next is tried when one is down. What
    each proxy knows of itself alone is asked of all.
    """

    def __init__(self, where: Whereabouts) -> None:
        self._urls = where.urls
        self._all_known = where.book is not None
        self._client = httpx.Client(
            **client_options(where.admin_key, where.urls, timeout=TIMEOUT, connect=5.0),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def proxies(self) -> list[dict[str, Any]]:
        """Ordinal, url and state of every proxy. Raises CommandFailed."""
        found: list[dict[str, Any]] = self.get("/proxies")["proxies"]
        return found

    def each(self) -> Iterator["Fleet"]:
        """Every proxy by itself."""
        urls = self._urls if self._all_known else tuple(proxy["url"] for proxy in self.proxies())
        for url in urls:
            yield self._only(url)

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
        if not answers and problems:
            raise problems[0]
        for problem in problems:
            warn(problem)
        return answers

    def _only(self, url: str) -> "Fleet":
        one = copy.copy(self)
        one._urls, one._all_known = (url,), True
        return one

    def get(self, path: str, **parameters: str | int | None) -> Any:
        """The JSON answer. Raises CommandFailed."""
        given = {name: value for name, value in parameters.items() if value is not None}
        return _parsed(self.send("GET", path, parameters=given))

    def post(self, path: str, body: object) -> Any:
        """The JSON answer. Raises CommandFailed."""
        return _parsed(self.send("POST", path, body=body))

    def fetch(self, path: str, into: BinaryIO) -> None:
        """Write the answer to a file as it comes. Raises CommandFailed for one that is an error, or for none."""
        problems: list[str] = []
        for url in self._urls:
            try:
                with self._client.stream("GET", f"{url}{path}") as answer:
                    if not answer.is_success:
                        answer.read()
                        raise _refused(answer)
                    for piece in answer.iter_raw():
                        into.write(piece)
                    return
            except httpx.ConnectError:
                problems.append(url)
            except httpx.HTTPError as error:
                raise failed(f"GET {url}{path}: {failure_in_words(error)}") from None
            except OSError as error:
                raise failed(f"{path} can't be kept on this machine: {error.strerror}") from None
        raise failed(f"no proxy answers at {', '.join(problems)}")

    def send(
        self,
        method: str,
        path: str,
        *,
        parameters: dict[str, Any] | None = None,
        body: object = None,
        accept: str = "application/json",
    ) -> httpx.Response:
        """The answer, read whole. Raises CommandFailed for one that is an error, or for none."""
        problems: list[str] = []
        for url in self._urls:
            try:
                answer = self._client.request(
                    method, f"{url}{path}", params=parameters, json=body, headers={"accept": accept}
                )
            except httpx.ConnectError:
                problems.append(url)
                continue
            except httpx.HTTPError as error:
                raise failed(f"{method} {url}{path}: {failure_in_words(error)}") from None
            if answer.is_success:
                return answer
            raise _refused(answer)
        raise failed(f"no proxy answers at {', '.join(problems)}")


def _parsed(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise failed(f"{answer.request.url} answered with something that is no JSON; is it a proxy?") from None


def _refused(answer: httpx.Response) -> CommandFailed:
    error = refusal(answer)
    return wrong(str(error)) if 400 <= error.status < 500 else failed(str(error))
