"""The trainer's side: starts sessions, rewards them, takes trajectories out. Plain HTTP."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import httpx

PAGE_OF_TRAJECTORIES = 16
ATTEMPTS = 60
PAUSE = 0.5


class Trainer:
    """Speaks to a fleet through any of its proxies."""

    def __init__(self, book: dict[str, Any]) -> None:
        key = Path(book["admin_key_file"]).read_text().strip()
        self._urls = [proxy["url"] for proxy in book["proxies"]]
        self._engines = [engine["url"] for engine in book["engines"]]
        self._engine_key = Path(book["engine_key_file"]).read_text().strip()
        self._client = httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}, timeout=60.0, trust_env=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._client.aclose()

    async def start_group(self, task: str, size: int) -> dict[str, Any]:
        """A new group: its id, and id, key and address of each of its sessions."""
        body = {"task_id": task, "group_size": size, "metadata": {"example": "quickstart"}}
        return dict(await self._call("POST", "/sessions", body))

    async def turns(self, session_id: str) -> list[dict[str, Any]]:
        """All turns of a session, page by page."""
        found: list[dict[str, Any]] = []
        cursor = None
        while True:
            where = f"/sessions/{session_id}/turns" + (f"?cursor={cursor}" if cursor else "")
            page = await self._call("GET", where)
            found.extend(page["turns"])
            cursor = page.get("cursor")
            if not cursor:
                return found

    async def reward(self, session_id: str, reward: float) -> None:
        """Reward the last turn; what was committed so far becomes a trajectory."""
        await self._call("POST", f"/sessions/{session_id}/reward", {"reward": reward})

    async def close(self, session_id: str) -> None:
        await self._call("POST", f"/sessions/{session_id}/close", {})

    async def exports(self, style: str) -> AsyncIterator[dict[str, Any]]:
        """Leases everything that is finished, of one proxy after the other, in several exports."""
        asked = {"max_trajectories": PAGE_OF_TRAJECTORIES, "style": style}
        for url in self._urls:
            while (taken := await self._call("POST", "/export", asked, url=url))["trajectories"]:
                yield taken

    async def group(self, group_id: str) -> dict[str, Any]:
        """Leases what one group has finished."""
        return dict(await self._call("POST", "/export", {"group_id": group_id, "style": "concat"}))

    async def dump_the_rest(self) -> None:
        """What nobody has taken goes to files, as it does with sessions that nobody comes back for."""
        for url in self._urls:
            await self._call("POST", "/drain", {"id": "quickstart", "reason": "the end of the quickstart"}, url=url)
            await self._call("POST", "/dumps", {}, url=url)

    async def release(self, lease_id: str) -> None:
        await self._call("POST", f"/leases/{lease_id}/release", {})

    async def acknowledge(self, lease_id: str) -> None:
        await self._call("POST", f"/leases/{lease_id}/ack", {})

    async def audits(self) -> list[dict[str, Any]]:
        """The sums of each proxy, by ordinal."""
        return [dict(await self._call("GET", "/audit", url=url)) for url in self._urls]

    async def stats(self) -> list[dict[str, Any]]:
        """The figures of each proxy, by ordinal."""
        return [dict(await self._call("GET", "/stats", url=url)) for url in self._urls]

    async def engine_log(self) -> list[dict[str, Any]]:
        """What the simulated engines say that they were sent and made."""
        headers = {"authorization": f"Bearer {self._engine_key}"}
        logs = [await self._call("GET", "/log", url=url, headers=headers) for url in self._engines]
        return [entry for log in logs for entry in log["requests"]]

    async def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        url: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> Any:
        for attempt in range(ATTEMPTS):
            target = url or self._urls[attempt % len(self._urls)]
            try:
                answer = await self._client.request(method, f"{target}{path}", json=body, headers=headers)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code != 503:
                if not answer.is_success:
                    raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text[:500]}")
                return answer.json()
            await asyncio.sleep(PAUSE)
        raise RuntimeError(f"{method} {path}: no answer in {ATTEMPTS * PAUSE:.0f} s")
