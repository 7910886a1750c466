"""HTTP to a fleet's proxies: how a connection is made, and what the failures of a call are raised as.

Calls that wait and those of asyncio are made by httpx alike; both are told of failures by `raising_unreachable` and
`checked`. Whether a call is made again is in retries.py.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, ValidationError

from rolloutfleet.fleet.exceptions import FleetError, Unreachable, refusal
from rolloutfleet.http_failures import failure_in_words

CONNECT_TIMEOUT: Final = 3.0
LOOPBACK: Final = ("127.0.0.1", "localhost", "::1")
Answer = TypeVar("Answer", bound=BaseModel)
_NOT_CONNECTED: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout)
"""What fails before anything of a call was sent."""


def client_options(
    key: str | None, urls: Iterable[str], *, timeout: float, connect: float = CONNECT_TIMEOUT
) -> dict[str, Any]:
    """What an httpx client of these addresses is made with. A proxy server of the environment has no business there
    where all of them are on this machine."""
    return {
        "headers": {"prefer": "wait=0"} | ({} if key is None else {"authorization": f"Bearer {key}"}),
        "timeout": httpx.Timeout(timeout, connect=connect),
        "trust_env": not all(urlsplit(url).hostname in LOOPBACK for url in urls),
    }


@contextmanager
def raising_unreachable(method: str, url: str) -> Iterator[None]:
    """Raises Unreachable for what httpx does where an answer does not come, or breaks off."""
    try:
        yield
    except (httpx.HTTPError, OSError) as error:
        why = failure_in_words(error)
        raise Unreachable(f"{method} {url}: {why}", why=why, sent=not isinstance(error, _NOT_CONNECTED)) from error


def checked(answer: httpx.Response) -> httpx.Response:
    """The answer, where it is a good one; a bad one has been read whole. Raises Refused."""
    if answer.is_success:
        return answer
    error = refusal(answer)
    error.add_note(f"{answer.request.method} {answer.request.url}")
    raise error


def read_answer(answer: httpx.Response, form: type[Answer]) -> Answer:
    """The body of an answer. Raises FleetError where it is something else."""
    try:
        return form.model_validate_json(answer.content)
    except ValidationError as error:
        # Not in pydantic's words: they quote the answer, in which there may be a session's key.
        fields = ", ".join(".".join(map(str, problem["loc"])) or "all of it" for problem in error.errors()[:10])
        raise unexpected_answer(answer, f"{fields} is not as expected") from None


def unexpected_answer(answer: httpx.Response, why: str) -> FleetError:
    """What is raised for the answer of something that is no proxy."""
    return FleetError(f"{answer.request.url} answered with something else than a proxy does: {why}")


def send(client: httpx.Client, method: str, url: str, **request: Any) -> httpx.Response:
    """The answer, read whole. Raises Unreachable, Refused."""
    with raising_unreachable(method, url):
        answer = client.request(method, url, **request)
    return checked(answer)


@contextmanager
def stream(client: httpx.Client, method: str, url: str, **request: Any) -> Iterator[httpx.Response]:
    """The answer as it comes; what is raised within the block is raised as `send` does. Raises Unreachable, Refused."""
    with raising_unreachable(method, url), client.stream(method, url, **request) as answer:
        if not answer.is_success:
            answer.read()
        yield checked(answer)
