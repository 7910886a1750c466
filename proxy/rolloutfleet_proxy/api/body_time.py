"""How long a body may keep the proxy waiting: no longer than it is silent for, or than a stop waits.

Only where the app waits for more of it: while a call is held with its body unread, its client owes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from rolloutfleet_proxy.domain.errors import Stopping
from rolloutfleet_proxy.http.errors import RequestTimeout
from rolloutfleet_proxy.memory.body_limit import has_body
from rolloutfleet_proxy.restarts.drain import Drains
from rolloutfleet_proxy.restarts.under_way import UnderWay

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SILENCE: Final = 30.0
"""Seconds that a body may send nothing for, and that a proxy which is to end waits for one that still sends."""


class BodyTime:
    """ASGI: passes requests to `app`, whose `receive` raises DomainError where more of a body is waited for too long.

    That is 408 for one that is silent, 503 draining for one that a planned stop no longer waits for.
    """

    def __init__(self, app: App, *, drains: Drains, under_way: UnderWay) -> None:
        self._app = app
        self._drains = drains
        self._under_way = under_way

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not has_body(scope["headers"]):
            await self._app(scope, receive, send)
            return
        began, more = asyncio.get_running_loop().time(), True

        async def timed() -> Message:
            nonlocal more
            message = await (self._waited_for(receive, began) if more else receive())
            more = message.get("more_body", False)
            return message

        await self._app(scope, timed, send)

    async def _waited_for(self, receive: Receive, began: float) -> Message:
        silent_until = asyncio.get_running_loop().time() + SILENCE
        ending = self._drains.ending_since
        until = silent_until if ending is None else min(silent_until, max(began, ending) + SILENCE)
        try:
            async with asyncio.timeout_at(until) as limit:
                with self._under_way.body(cut=lambda: limit.reschedule(0.0)):
                    return await receive()
        except TimeoutError:
            if limit.when() != silent_until:
                raise Stopping() from None
            raise RequestTimeout(f"Nothing of the body came for {SILENCE:g} s.") from None
