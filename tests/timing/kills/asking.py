"""Requests to proxies that may die under them: made again, under their keys, until there is an answer."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
from tests.fleets import ProxyProcess
from tests.timing.kills.journal import Journal

AGAIN = 0.25
"""Seconds until a call that was not answered is made again."""
TIMEOUT = 60.0
"""Seconds for one request."""

Json = Any


class Unexpected(Exception):
    """An answer that no client should ever get."""


class Asking:
    """Plain HTTP with the admin's key, and what is asked and answered in the journal."""

    def __init__(self, admins: Sequence[httpx.AsyncClient], journal: Journal) -> None:
        self.journal = journal
        self._admins = admins

    async def ask(self, what: str, ordinal: int, path: str, body: Json = None, *, key: str = "") -> Json:
        """The JSON of a success; anything else is against the rules."""
        reply = await self.until_told(what, ordinal, path, body, key=key)
        if not reply.is_success:
            raise Unexpected(f"{what} {path} {key}: {reply.status_code} {reply.text}")
        return reply.json()

    async def until_told(
        self, what: str, ordinal: int, path: str, body: Json = None, *, key: str = "", method: str = "POST"
    ) -> httpx.Response:
        """A success, or a refusal that a retry can't change. Anything else is asked again, under its key.

        `what` is how the journal calls it; nothing is written of what has no such name.
        """
        headers = {"idempotency-key": key} if key else {}
        while True:
            noted = self.journal.asking(what, ordinal) if what else contextlib.nullcontext()
            with noted, contextlib.suppress(httpx.TransportError):
                reply = await self._admins[ordinal].request(method, path, json=body, headers=headers)
                if reply.status_code < 500 and reply.status_code != 429:
                    return reply
            if what:
                self.journal.broke_off(what)
            await asyncio.sleep(AGAIN)


@contextlib.asynccontextmanager
async def asking(proxies: Sequence[ProxyProcess], journal: Journal) -> AsyncIterator[Asking]:
    """Until the block ends."""
    limits = httpx.Limits(max_connections=None)
    async with contextlib.AsyncExitStack() as stack:
        admins = [
            await stack.enter_async_context(
                httpx.AsyncClient(
                    base_url=proxy.url,
                    headers={"authorization": f"Bearer {proxy.key}"},
                    timeout=TIMEOUT,
                    limits=limits,
                )
            )
            for proxy in proxies
        ]
        yield Asking(admins, journal)


def code_of(reply: httpx.Response) -> str:
    """An error's code."""
    return str(reply.json()["error"]["code"])
