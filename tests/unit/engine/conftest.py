"""Engines for tests, and a small client that asks them as a gateway would."""

import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from tests.waiting import PATIENCE

from rolloutfleet_engine.chat import prompt_text
from rolloutfleet_engine.faults import Fault
from rolloutfleet_engine.model import Model, model_path
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.testing import RunningEngine, running_engine

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


@pytest.fixture(scope="session")
def model() -> Model:
    return Model(model_path())


@pytest.fixture(scope="session")
def prompt(model: Model) -> list[int]:
    """A question with a tool declared."""
    return model.encode(prompt_text([{"role": "user", "content": "What is the weather in Oslo?"}], [WEATHER]))


@pytest.fixture
def start() -> Iterator[Callable[..., RunningEngine]]:
    """Starts an engine with these options; all are stopped when the test ends."""
    with ExitStack() as stack:

        def starting(*, faults: list[Fault] | None = None, **options: Any) -> RunningEngine:
            return stack.enter_context(running_engine(EngineOptions(**options), faults=faults or []))

        yield starting


@pytest.fixture
async def connect() -> AsyncIterator[Callable[[str], Asker]]:
    """A client for a URL, closed when the test ends."""
    askers: list[Asker] = []

    def connecting(url: str) -> Asker:
        askers.append(Asker(url))
        return askers[-1]

    yield connecting
    for asker in askers:
        await asker.http.aclose()


@pytest.fixture
def engine(start: Callable[..., RunningEngine], connect: Callable[[str], Asker]) -> Callable[..., Asker]:
    """Starts an engine with these options and gives a client of it."""
    return lambda **options: connect(start(**options).url)
