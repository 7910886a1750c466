"""Threads for an encoder that leaves tables behind in each thread that uses it.

`fastokens` keeps the words that it met, for each thread by itself. What agents read (base64, hashes) makes that grow to
100 MB and more, which nothing gives back but the thread's end. So one thread encodes for all who ask, and another takes
its place after so many characters; a long text has a thread to itself, so that no short one waits for it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
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
        self._left = 0
        self._lock = Lock()
        self._running: _Running | None = None

    def __call__(self, text: str, add_special_tokens: bool) -> bytes:
        """Raises EncoderFailed."""
        if len(text) >= LONG:
            alone = _Running(self._encode)
            try:
                return alone.ask(text, add_special_tokens)
            finally:
                alone.end()
        with self._lock:
            if self._running is None or self._left < len(text):
                self._renew()
            assert self._running is not None
            self._left -= len(text)
            return self._running.ask(text, add_special_tokens)

    def forget(self) -> None:
        """Give back what the thread has kept; the next text gets another."""
        with self._lock:
            self._end()

    def _renew(self) -> None:
        self._end()
        self._running = _Running(self._encode)
        self._left = self._characters

    def _end(self) -> None:
        if self._running is not None:
            self._running.end()
        self._running = None


@dataclass(frozen=True, slots=True)
class _Question:
    text: str
    add_special_tokens: bool
    answers: SimpleQueue[bytes | BaseException]
    """Its own, so that nobody can get another's answer."""


class _Running:
    """A thread that encodes until it is told to end, or nobody is left who could ask."""

    def __init__(self, encode: Encode) -> None:
        self._questions: SimpleQueue[_Question | None] = SimpleQueue()
        Thread(target=_serve, args=(encode, self._questions), name="encoder", daemon=True).start()
        self.end = weakref.finalize(self, self._questions.put, None)

    def ask(self, text: str, add_special_tokens: bool) -> bytes:
        answers: SimpleQueue[bytes | BaseException] = SimpleQueue()
        self._questions.put(_Question(text, add_special_tokens, answers))
        answer = answers.get()
        if isinstance(answer, BaseException):
            raise EncoderFailed(str(answer)) from answer
        return answer


def _serve(encode: Encode, questions: SimpleQueue[_Question | None]) -> None:
    while (question := questions.get()) is not None:
        try:
            question.answers.put(encode(question.text, question.add_special_tokens))
        except BaseException as error:  # a panic in Rust is none of Exception's kind
            question.answers.put(error)
        del question  # Else the last text stays in memory until the next one comes.
