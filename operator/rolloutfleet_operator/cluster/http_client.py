"""Questions to proxies and gateways over HTTP, with answers of bounded size and in bounded time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from rolloutfleet.http_failures import failure_in_words

LARGEST: Final = 4 * 2**20
"""Bytes of an answer; figures are some kilobytes."""
CONNECTIONS: Final = 200
IDLE: Final = 30.0
"""Seconds after which a connection that nobody uses is closed."""


class RequestFailed(Exception):
    """None came, or one that is too large; or the question could not be sent."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    content: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")

    def json(self) -> Any:
        """Raises ValueError."""
        return msgspec.json.decode(self.content)


class HttpClient:
    """One pool of connections to all of them, straight: what is talked to is within the cluster."""

    def __init__(self) -> None:
        connector = aiohttp.TCPConnector(limit=CONNECTIONS, keepalive_timeout=IDLE)
        self._session = aiohttp.ClientSession(connector=connector, trust_env=False)

    async def close(self) -> None:
        await self._session.close()

    async def ask(
        self,
        method: str,
        url: str,
        key: str | None,
        *,
        timeout: float,
        json: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
    ) -> Answer:
        """`timeout`: seconds for all of it. Raises RequestFailed."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        within = aiohttp.ClientTimeout(total=timeout)
        try:
            async with self._session.request(
                method, url, headers=headers, json=json, params=params, timeout=within, allow_redirects=False
            ) as answer:
                return Answer(answer.status, _without_key(await _content(answer), key))
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise RequestFailed(failure_in_words(error)) from None
        except ValueError:
            raise RequestFailed("its key can't stand in a header") from None


def _without_key(content: bytes, key: str | None) -> bytes:
    """Answers are quoted in statuses and events, and another program on that port may say what it was asked."""
    return content.replace(key.encode(), b"[key]") if key else content


async def _content(answer: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > LARGEST:
            raise RequestFailed(f"more than {LARGEST} bytes")
    return bytes(content)
