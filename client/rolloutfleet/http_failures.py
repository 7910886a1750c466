"""What is said of an HTTP request that failed: by the kind of its exception, never in the exception's own words.

Those are made by a library out of the request and of what came back: aiohttp's ClientResponseError holds all headers
of the request, keys included, and a bad status line is quoted as it came. So none of it goes into an answer, a
status, or a message to a user.
"""

import os
from collections.abc import Mapping, Sequence
from typing import Final

_BROKEN: Final = ("ClientResponseError", "ClientPayloadError", "ProtocolError", "DecodingError")
_KINDS: Final[Mapping[str, Sequence[str]]] = {
    "its name can't be resolved": ("ClientConnectorDNSError",),
    "no secure connection could be made": ("ClientSSLError",),
    "no connection was made in time": ("ConnectionTimeoutError", "ConnectTimeout"),
    "no connection could be made": ("ClientConnectorError", "ConnectError"),
    "it closed the connection without an answer": ("ServerDisconnectedError",),
    "what it sent is not HTTP, or broke off": _BROKEN,
    "its address can't be used": ("InvalidURL", "UnsupportedProtocol"),
    "no answer came in time": ("TimeoutError", "TimeoutException"),
    "the connection broke off": ("ConnectionError", "NetworkError"),
    "the connection failed": ("OSError",),
}
"""The names of classes, aiohttp's before httpx's: the base package has one of them. The nearest base class counts."""
_WORDS: Final = {kind: words for words, kinds in _KINDS.items() for kind in kinds}


def failure_in_words(error: BaseException) -> str:
    """What went wrong, as the end of a sentence; of what it says only the system's error number is looked at."""
    kinds = (kind.__name__ for kind in type(error).__mro__)
    said = next((_WORDS[name] for name in kinds if name in _WORDS), type(error).__name__)
    number = error.errno if isinstance(error, OSError) else None
    # A name that can't be resolved has a number of another kind.
    if type(number) is int and number > 0:
        return f"{said} ({os.strerror(number)})"
    return said
