"""HTTP requests to proxies and gateways, with answers of bounded size and in bounded time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import msgspec

from rolloutfleet.http_failures import failure_in_words

LARGEST: Final = 4 * 2**20
"""Bytes of an answer; figures are some kilobytes."""
CONNECTIONS: Final = 200
CONNECT: Final = 1.0
"""Seconds for a connection: within a cluster one takes milliseconds."""
IDLE: Final = 30.0
"""Seconds after which a connection that nobody uses is closed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What was answered."""

    status: int = 0
    """0 where no answer came, or one that is too large, or the question could not be sent: `failure` says why."""
    content: bytes = b""
    failure: str = ""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    def json(self) -> dict[str, Any] | None:
        """The object in it; None where there is none, or it is not of a success."""
        try:
            found = msgspec.json.decode(self.content) if self.is_success else None
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


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
        """`timeout`: seconds for all of it."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        within = aiohttp.ClientTimeout(total=timeout, sock_connect=CONNECT)
        try:
            async with self._session.request(
                method, url, headers=headers, json=json, params=params, timeout=within, allow_redirects=False
            ) as answer:
                content = await _content(answer)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            return Answer(failure=failure_in_words(error))
        except ValueError:
            return Answer(failure="its key can't stand in a header")
        if content is None:
            return Answer(failure=f"more than {LARGEST} bytes")
        return Answer(answer.status, _without_key(content, key))


def _without_key(content: bytes, key: str | None) -> bytes:
    """Answers are quoted in statuses and events, and another program on that port may say what it was asked."""
    return content.replace(key.encode(), b"[key]") if key else content


async def _content(answer: aiohttp.ClientResponse) -> bytes | None:
    """None where it is too large."""
    content = bytearray()
    async for piece in answer.content.iter_any():
        content += piece
        if len(content) > LARGEST:
            return None
    return bytes(content)
