"""What is said of an HTTP request that failed: by the kind of its exception, never in the exception's own words.

Those are made by a library out of the request and of what came back: aiohttp's ClientResponseError holds all headers
of the request, keys included, and a bad status line is quoted as it came. So none of it goes into an answer, a
status, or a message to a user.
"""

import os
from collections.abc import Mapping
from typing import Final

_BROKEN: Final = "what it sent is not HTTP, or broke off"
_KINDS: Final[Mapping[str, str]] = {
    # aiohttp
    "ClientConnectorDNSError": "its name can't be resolved",
    "ClientSSLError": "no secure connection could be made",
    "ConnectionTimeoutError": "no connection was made in time",
    "ClientConnectorError": "no connection could be made",
    "ServerDisconnectedError": "it closed the connection without an answer",
    "ClientResponseError": _BROKEN,
    "ClientPayloadError": _BROKEN,
    "InvalidURL": "its address is not one that can be asked",
    # httpx
    "ConnectTimeout": "no connection was made in time",
    "TimeoutException": "no answer came in time",
    "ConnectError": "no connection could be made",
    "ProtocolError": _BROKEN,
    "DecodingError": _BROKEN,
    "NetworkError": "the connection broke off",
    "UnsupportedProtocol": "its address is not one that can be asked",
    # both
    "TimeoutError": "no answer came in time",
    "ConnectionError": "the connection broke off",
    "OSError": "the connection failed",
}
"""By the names of classes, of two libraries of which the base package has one. The nearest base class counts."""


def failure_in_words(error: BaseException) -> str:
    """What went wrong, as the end of a sentence; of what it says only the system's error number is looked at."""
    kinds = (kind.__name__ for kind in type(error).__mro__)
    said = next((_KINDS[name] for name in kinds if name in _KINDS), type(error).__name__)
    number = error.errno if isinstance(error, OSError) else None
    # A name that can't be resolved has a number of another kind.
    if type(number) is int and number > 0:
        return f"{said} ({os.strerror(number)})"
    return said
