"""Whether a field that nobody knows reaches the engines: a gateway may write bodies anew, without it.

SGLang refuses a sampling parameter that it does not know, by its name (0.5.23), before anything is generated. So a
request with such a one is sent through the gateway: where that name comes back, it arrived. Where an answer comes
instead, one engine is asked directly; if that one refuses, the gateway has lost it.
"""

import asyncio
from dataclasses import dataclass
from typing import Final

from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.engine.client import Engine
from rolloutfleet_proxy.telemetry import logger

FIELD: Final = "rolloutfleet_probe"
BODY: Final = {"input_ids": [1], "sampling_params": {"max_new_tokens": 1, FIELD: 1}}
LOST: Final = "sampling parameters that the gateway does not know"
AGAIN: Final = 5.0
"""Seconds to the next try, where no engine answered."""


@dataclass(eq=False, slots=True)
class Probing:
    """What is known of the way to the engines."""

    loses: tuple[str, ...] | None = None
    """What is lost on the way; None while that is not known."""
    requests: int = 0
    """Sent to the gateway for this."""

    async def run(self, engine: Engine) -> None:
        """Try until an engine has answered, or until it is clear that engines do not tell."""
        while True:
            self.requests += 1
            passed = await engine.refuses(BODY, naming=FIELD)
            if passed:
                self.loses = ()
                return
            if passed is not None:
                break
            await asyncio.sleep(AGAIN)
        if await self._an_engine_refuses(engine):
            self.loses = (LOST,)
            logger.warning("%s are lost: it rewrites requests; see docs/gateway.md", LOST)

    async def _an_engine_refuses(self, engine: Engine) -> bool:
        try:
            urls = await engine.engines()
        except DomainError:
            return False
        return bool(urls) and await engine.refuses(BODY, naming=FIELD, at=urls[0]) is True
