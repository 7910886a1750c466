"""Engines that a fleet waits for: those that its gateway does not use yet, and why."""

import asyncio
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import httpx

from rolloutfleet.http_failures import failure_in_words
from rolloutfleet.units import format_duration
from rolloutfleet_operator.local.site import LocalFleetError

NAMED: Final = 5
"""So many engines are named in a line, and the rest counted."""
TIMEOUT: Final = 5.0
"""SGLang takes a second and more for GET /health: it generates a token."""


@dataclass(frozen=True, slots=True)
class EnginesAwaited:
    """Why engines, by their addresses, are not in use, and the seconds that they have been waited for."""

    missing: Mapping[str, str]
    seconds: float

    def __str__(self) -> str:
        return f"waiting for {_in_words(self.missing)}, {self.seconds:.0f} s"


class EnginesMissing(LocalFleetError):
    """Engines that did not come in time."""

    def __init__(self, missing: Mapping[str, str], within: float) -> None:
        super().__init__(f"{_in_words(missing)} did not come within {format_duration(within)}")


def _in_words(missing: Mapping[str, str]) -> str:
    named = ", ".join(f"{url} ({why})" for url, why in islice(missing.items(), NAMED))
    more = f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return f"{'engine' if len(missing) == 1 else 'engines'} {named}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLook:
    """A look at which of a gateway's engines are missing."""

    gateway: str
    gateway_key: str
    engines: Sequence[str]
    engine_key: str

    async def missing(self, http: httpx.AsyncClient) -> dict[str, str]:
        """Those that the gateway does not use, with the reason."""
        used = await self._used(http)
        absent = [url for url in self.engines if url not in used]
        reasons = await asyncio.gather(*(self._reason(http, url) for url in absent))
        return dict(zip(absent, reasons, strict=True))

    async def _used(self, http: httpx.AsyncClient) -> frozenset[str]:
        """The engines that the gateway lists as healthy; none where it does not answer."""
        try:
            answer = await http.get(f"{self.gateway}/workers", headers=bearer(self.gateway_key))
            return frozenset(worker["url"] for worker in answer.json()["workers"] if worker["is_healthy"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError):
            return frozenset()

    async def _reason(self, http: httpx.AsyncClient, url: str) -> str:
        # The second needs the engines' key, where they have one.
        for path in ("/health", "/v1/models"):
            try:
                async with http.stream("GET", url + path, headers=bearer(self.engine_key), timeout=TIMEOUT) as answer:
                    if answer.status_code != 200:
                        return f"answers {answer.status_code}"
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                return failure(error)
        return "answers, the gateway does not use it yet"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def failure(error: Exception) -> str:
    """Why an engine can't be asked; an error of httpx does not say itself why there is no connection."""
    for cause in _causes(error):
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused"
        if isinstance(cause, socket.gaierror):
            return "its name can't be resolved"
    return failure_in_words(error)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """It, and what it goes back to; a name with several addresses has a group of errors, the first of which is told."""
    while error is not None:
        yield error
        error = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error.__cause__ or error.__context__
