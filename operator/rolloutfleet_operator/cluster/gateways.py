"""The gateways of a fleet: which engines they know (`GET /workers` of sglang-router), and forgetting a lost one."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rolloutfleet_operator.cluster.asking import Answer, Asker, NoAnswer
from rolloutfleet_operator.policy.seen import WorkerSeen

TIMEOUT: Final = 5.0


class Gateways:
    def __init__(self, asker: Asker) -> None:
        self._asker = asker

    async def workers(self, urls: Iterable[str], key: str | None) -> tuple[WorkerSeen, ...] | None:
        """What the gateways list together: an engine is healthy where one says so. None where none answered."""
        answers = await asyncio.gather(*(self._workers(url, key) for url in urls))
        heard = [answer for answer in answers if answer is not None]
        if not heard:
            return None
        together: dict[str, WorkerSeen] = {}
        for worker in (each for answer in heard for each in answer):
            if worker.url not in together or worker.healthy:
                together[worker.url] = worker
        return tuple(together[url] for url in sorted(together))

    async def forget(self, urls: Iterable[str], key: str | None, worker: str) -> None:
        """Take the engine of that address out of every gateway that lists it."""
        for url in urls:
            for known in await self._workers(url, key) or ():
                if known.url == worker and known.id is not None:
                    await self._request("DELETE", f"{url}/workers/{known.id}", key)

    async def _workers(self, url: str, key: str | None) -> list[WorkerSeen] | None:
        answer = await self._request("GET", f"{url}/workers", key)
        if answer is None or not answer.is_success:
            return None
        try:
            return [_worker(each) for each in answer.json()["workers"]]
        except (KeyError, TypeError, ValueError):
            return None

    async def _request(self, method: str, url: str, key: str | None) -> Answer | None:
        try:
            return await self._asker.ask(method, url, key, timeout=TIMEOUT)
        except NoAnswer:
            return None


def _worker(worker: Mapping[str, Any]) -> WorkerSeen:
    return WorkerSeen(url=worker["url"].rstrip("/"), healthy=bool(worker["is_healthy"]), id=worker.get("id"))
