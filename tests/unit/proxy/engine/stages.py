"""Turns of a proxy at an engine, without the rest of a proxy."""

from collections.abc import Callable, Mapping
from typing import Any

import httpx
from tests.waiting import PATIENCE, comes_true

from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.engine.evidence import Evidence
from rolloutfleet_proxy.engine.generation import Generation
from rolloutfleet_proxy.engine.reply_stream import Chunk
from rolloutfleet_proxy.engine.request import GenerateRequest, ids_json
from rolloutfleet_proxy.services.weights import WeightService

PROMPT = list(range(20, 60))
TOKENS = 60


class Stage:
    """A simulated engine, a proxy's weights, and turns made of both."""

    def __init__(
        self,
        engine_url: str,
        gateway_url: str,
        weights: WeightService,
        *,
        counters: Callable[[], Mapping[str, Any]],
        **settings: Any,
    ) -> None:
        """`counters`: what the engine counts now."""
        self.http = httpx.AsyncClient(base_url=engine_url, timeout=PATIENCE)
        self.engine = Engine(gateway_url, engine_urls=[engine_url], **settings)
        self.weights = weights
        self._counters = counters
        self.chunks: list[Chunk] = []
        self.cache_by_version = True
        self.mixed_cache = False
        """Whether the last turn was marked."""
        self.rounds = 0
        self.outages: list[bool] = []
        """What was told of them."""

    async def close(self) -> None:
        await self.engine.aclose()
        await self.http.aclose()

    async def turn(
        self, *, streamed: bool = False, tokens: int = TOKENS, max_rounds: int = 20, rid: str = "turn", **sampling: Any
    ) -> Evidence:
        """Make a turn of exactly `tokens` tokens, unless it is ended before."""
        request = GenerateRequest(
            rid=rid,
            routing_key="s0-abc",
            prompt_json=ids_json(PROMPT),
            prompt_tokens=len(PROMPT),
            max_new_tokens=tokens,
            sampling={"ignore_eos": True, **sampling},
            vocab_size=100_000,
        )
        async with self.weights.gate.submission() as submission:
            generation = Generation(
                engine=self.engine,
                weights=self.weights.gate,
                submission=submission,
                on_chunk=self.chunks.append if streamed else None,
                cache_by_version=self.cache_by_version,
                max_rounds=max_rounds,
                on_round=self._count,
                on_outage=self.outages.append,
            )
            evidence = await generation.run(request)
        self.mixed_cache = submission.mixed_cache
        return evidence

    def _count(self) -> None:
        self.rounds += 1

    @property
    def shown(self) -> list[int]:
        return [id for chunk in self.chunks for id in chunk.output_ids]

    async def log(self) -> list[dict[str, Any]]:
        requests: list[dict[str, Any]] = (await self.http.get("/log")).json()["requests"]
        return requests

    async def until(self, **counts: int) -> None:
        """Wait until the engine counts so."""
        await comes_true(lambda: counts.items() <= self._counters().items())

    async def until_shown(self, tokens: int = 1) -> None:
        await comes_true(lambda: len(self.shown) >= tokens)

    async def stand_after(self, tokens: int, *, rounds: int = 1) -> None:
        """The next rounds make so many tokens at once, and no more until they are cut."""
        await self.fault(kind="never", after_tokens=tokens, count=rounds)

    async def fault(self, **fault: Any) -> None:
        (await self.http.post("/faults", json=fault)).raise_for_status()

    async def pause(self, mode: Any, *, settle: bool = True) -> None:
        """As a fleet does it: hold, pause the engine, wait until nothing generates."""
        await self.weights.hold(epoch=self.weights.gate.epoch + 1, mode=mode)
        assert await self.engine.pause(mode) == {}
        if settle:
            await self.weights.gate.settled(epoch=self.weights.gate.epoch, timeout=PATIENCE)

    async def go_on(self, version: int) -> None:
        """New weights, then the engine goes on, then the proxy."""
        answer = await self.http.post(
            "/update_weights_from_disk", json={"model_path": "x", "weight_version": str(version)}
        )
        assert answer.status_code in (200, 400)
        await self.weights.advance(version)
        assert await self.engine.resume() == {}
        await self.weights.release(epoch=self.weights.gate.epoch)
