"""Asking an engine, real or simulated, over SGLang's native API."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any, Self

import httpx
from tests.waiting import PATIENCE

JSON = Any
END_OF_STREAM = "[DONE]"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer as it came: `body` is JSON or text; of a stream it is the list of its events, JSON or text."""

    status: int
    content_type: str | None
    body: JSON
    streamed: bool = False

    @property
    def final(self) -> JSON:
        """The whole generation: the body, or the last event of a stream before its end mark."""
        return self.body[-2] if self.streamed else self.body

    @property
    def output_ids(self) -> list[int]:
        ids: list[int] = self.final["output_ids"]
        return ids

    @property
    def logprobs(self) -> list[float]:
        return [entry[0] for entry in self.final["meta_info"]["output_token_logprobs"]]

    @property
    def versions(self) -> list[tuple[str, int, int]]:
        spans = self.final["meta_info"]["weight_versions"]
        return [(span["version"], span["start"], span["end"]) for span in spans]

    @property
    def finish_type(self) -> str:
        kind: str = self.final["meta_info"]["finish_reason"]["type"]
        return kind


@dataclass(slots=True)
class Generation:
    """A generation in flight; its events can be watched while they come."""

    task: "asyncio.Task[Reply]"
    events: list[JSON] = field(default_factory=list)

    async def reply(self) -> Reply:
        return await asyncio.wait_for(self.task, PATIENCE)

    async def leave(self) -> None:
        """The caller closes its connection."""
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task


class Engine:
    """One engine, or a gateway in front of it, at `url`."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.http.aclose()

    async def get(self, path: str) -> Reply:
        return read(await self.http.get(path))

    async def post(self, path: str, body: JSON = None) -> Reply:
        content = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        headers = {"content-type": "application/json"}
        return read(await self.http.post(path, content=content, headers=headers))

    async def generate(self, body: JSON) -> Reply:
        return await self.start(body).reply()

    def start(self, body: JSON) -> Generation:
        events: list[JSON] = []
        return Generation(task=asyncio.create_task(self._generate(body, events)), events=events)

    async def _generate(self, body: JSON, events: list[JSON]) -> Reply:
        async with self.http.stream("POST", "/generate", json=body) as response:
            if not (response.headers.get("content-type") or "").startswith("text/event-stream"):
                await response.aread()
                return read(response)
            async for event in events_of(response):
                events.append(event)
            return Reply(response.status_code, response.headers["content-type"], events, streamed=True)

    async def pause(self, mode: str) -> Reply:
        return await self.post("/pause_generation", {"mode": mode})

    async def go_on(self) -> Reply:
        return await self.post("/continue_generation", {})

    def tokens_held(self) -> int:
        """Tokens of prompts and outputs that its running requests have in the cache. Blocks, as `eventually` has it."""
        held: int = self._load()["num_used_tokens"]
        return held

    def running_requests(self) -> int:
        """Running and waiting ones. Blocks."""
        load = self._load()
        running: int = load["num_running_reqs"] + load["num_waiting_reqs"]
        return running

    def _load(self) -> JSON:
        return httpx.get(f"{self.url}/v1/loads?include=core", timeout=PATIENCE).json()["loads"][0]


def read(response: httpx.Response) -> Reply:
    content_type = response.headers.get("content-type")
    is_json = content_type == "application/json" and response.content != b""
    return Reply(response.status_code, content_type, response.json() if is_json else response.text)


async def events_of(response: httpx.Response) -> AsyncIterator[JSON]:
    """The events of a stream. Raises AssertionError on framing other than `data: …` and an empty line."""
    buffered = ""
    async for text in response.aiter_text():
        *blocks, buffered = (buffered + text).split("\n\n")
        for block in blocks:
            assert block.startswith("data: ") and "\n" not in block, f"not one line of data: {block!r}"
            payload = block.removeprefix("data: ")
            yield payload if payload == END_OF_STREAM else json.loads(payload)
    assert buffered == "", f"after the last event: {buffered!r}"


def is_healthy(gateway: str) -> bool:
    """Whether the gateway takes its one engine for healthy. Blocks."""
    [worker] = httpx.get(f"{gateway}/workers", timeout=PATIENCE).json()["workers"]
    return bool(worker["is_healthy"])
