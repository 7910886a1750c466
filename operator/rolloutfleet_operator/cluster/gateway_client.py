"""Client of a fleet's gateways: lists the engines that each knows (`GET /workers` of smg), adds and removes them."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rolloutfleet_operator.cluster.http_client import Answer, HttpClient
from rolloutfleet_operator.cluster.logs import logger
from rolloutfleet_operator.policy.actions import AddWorker, RemoveWorker
from rolloutfleet_operator.policy.observed import ObservedWorker

TIMEOUT: Final = 5.0
_DRAINING: Final = "draining"


class GatewayClient:
    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def lists(self, urls: Iterable[str], key: str | None) -> dict[str, tuple[ObservedWorker, ...]]:
        """What each gateway that answers lists. `key` is that of the gateways' control plane."""
        urls = list(urls)
        answers = await asyncio.gather(*(self._list(url, key) for url in urls))
        return {url: answer for url, answer in zip(urls, answers, strict=True) if answer is not None}

    async def add(self, action: AddWorker, key: str | None, engine_key: str | None) -> None:
        """What does not work now is tried again at the next pass, as it will not be listed then."""
        asked = {"url": action.url} if engine_key is None else {"url": action.url, "api_key": engine_key}
        await self._request("POST", f"{action.gateway}/workers", key, asked)

    async def remove(self, action: RemoveWorker, key: str | None) -> None:
        await self._request("DELETE", f"{action.gateway}/workers/{action.id}", key)

    async def _list(self, url: str, key: str | None) -> tuple[ObservedWorker, ...] | None:
        found = (await self._request("GET", f"{url}/workers", key)).json()
        try:
            return None if found is None else tuple(_worker(each) for each in found["workers"])
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    async def _request(self, method: str, url: str, key: str | None, asked: Mapping[str, Any] | None = None) -> Answer:
        answer = await self._http.ask(method, url, key, timeout=TIMEOUT, json=asked)
        if not (answer.failure or answer.is_success or answer.status == 409):
            logger.warning("%s %s was answered with %s", method, url, answer.status)
        return answer


def _worker(worker: Mapping[str, Any]) -> ObservedWorker:
    return ObservedWorker(
        url=worker["url"].rstrip("/"),
        healthy=bool(worker["is_healthy"]),
        id=worker.get("id"),
        draining=worker.get("status") == _DRAINING,
    )
