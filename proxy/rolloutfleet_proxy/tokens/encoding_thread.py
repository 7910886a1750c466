"""Threads for an encoder that leaves tables behind in each thread that uses it.

`fastokens` keeps the words that it met, for each thread by itself. What agents read (base64, hashes) makes that grow to
100 MB and more, which nothing gives back but the thread's end. So one thread encodes for all who ask, and another takes
its place after so many characters; a long text has a thread to itself, so that no short one waits for it.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Final

Encode = Callable[[str, bool], bytes]
"""A text, and whether special tokens are added -> its ids."""

CHARACTERS: Final = 4_000_000
"""What one thread encodes: of base64, that leaves some 20 MB behind; of prose or code, a tenth of it."""

LONG: Final = 150_000
"""Characters from which on a text has a thread of its own. All that are shorter take milliseconds."""


class EncoderFailed(Exception):
    """The encoder gave an error instead of ids, or panicked."""


class EncodingThread:
    """Callable as the encoder is, from any thread; one at a time, but for long texts."""

    def __init__(self, encode: Encode, *, characters: int = CHARACTERS) -> None:
        self._encode = encode
        self._characters = characters
        self._lock = Lock()
        self._renew()

    def __call__(self, text: str, add_special_tokens: bool) -> bytes:
        """Raises EncoderFailed."""
        if len(text) >= LONG:
            with ThreadPoolExecutor(1) as alone:
                return self._asked(alone, text, add_special_tokens)
        with self._lock:
            if self._left < len(text):
                self._thread.shutdown(wait=False)
                self._renew()
            self._left -= len(text)
            return self._asked(self._thread, text, add_special_tokens)

    def forget(self) -> None:
        """Give back what the thread has kept; the next text gets another."""
        with self._lock:
            self._thread.shutdown(wait=False)
            self._renew()

    def _renew(self) -> None:
        self._thread = ThreadPoolExecutor(1, "encoder")
        self._left = self._characters

    def _asked(self, thread: ThreadPoolExecutor, text: str, add_special_tokens: bool) -> bytes:
        answer = thread.submit(self._encode, text, add_special_tokens)
        if (error := answer.exception()) is not None:  # of any kind: a panic in Rust is none of Exception's
            raise EncoderFailed(str(error)) from error
        return answer.result()
