"""A small client that asks an engine as a gateway would, and what it asks."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
from tests.waiting import PATIENCE

from rolloutfleet_engine.chat import prompt_text
from rolloutfleet_engine.model import Model

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
            "required": ["city"],
        },
    },
}


def weather_prompt(model: Model) -> list[int]:
    """A question with a tool declared."""
    return model.encode(prompt_text([{"role": "user", "content": "What is the weather in Oslo?"}], [WEATHER]))


class Asker:
    """Talks to one engine, or to a gateway before it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.http = httpx.AsyncClient(base_url=url, timeout=PATIENCE)

    def body(self, prompt: list[int], **fields: Any) -> dict[str, Any]:
        sampling = fields.pop("sampling_params", {})
        return {
            "input_ids": prompt,
            "sampling_params": {"max_new_tokens": 400, **sampling},
            "return_logprob": True,
            **fields,
        }

    async def post(self, path: str, **body: Any) -> httpx.Response:
        return await self.http.post(path, json=body)

    async def generate(self, prompt: list[int], **fields: Any) -> dict[str, Any]:
        reply = await self.http.post("/generate", json=self.body(prompt, **fields))
        assert reply.status_code == 200, reply.text
        answer: dict[str, Any] = json.loads(reply.text)
        return answer

    async def events(self, prompt: list[int], **fields: Any) -> AsyncIterator[str]:
        """The data of each event, `[DONE]` included."""
        body = self.body(prompt, stream=True, **fields)
        async with self.http.stream("POST", "/generate", json=body) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            async for line in reply.aiter_lines():
                if line:
                    assert line.startswith("data: ")
                    yield line.removeprefix("data: ")

    async def counters(self) -> dict[str, Any]:
        counted: dict[str, Any] = (await self.http.get("/counters")).json()
        return counted

    async def log(self) -> list[dict[str, Any]]:
        ended: list[dict[str, Any]] = json.loads((await self.http.get("/log")).text)["requests"]
        return ended
