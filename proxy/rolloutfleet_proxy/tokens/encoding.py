"""Text -> token ids: by `fastokens` where it gives what `tokenizers` gives, else by `tokenizers`.

`fastokens` reads the same tokenizer.json and is many times as fast. It is a younger program, so `tokenizers` stays the
judge: at the start both encode the same passages, later every so often the same text, and after the first difference
`fastokens` is not asked again. Nothing that is kept depends on which of the two made a prompt: the ids that were sent
are the ids that are stored.

`fastokens` keeps the words that it met, for each thread by itself. What agents read (base64, hashes) makes that grow to
100 MB and more, which nothing gives back but the thread's end. So one thread encodes for all who ask, and another takes
its place after so many characters; a long text has a thread to itself, so that no short one waits for it.
"""

from __future__ import annotations

import logging
import os
import unicodedata
from array import array
from collections.abc import Callable
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Final
from weakref import finalize

from tokenizers import Tokenizer

log = logging.getLogger(__name__)

ENVIRONMENT = {"FASTOKENS_BPE_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Else both start a thread for each core, for texts that are long or come many at once. Here they come one by one."""

for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

CHECK_EVERY = 256
"""Texts of which one is encoded by both."""

CHECKED_AT_MOST = 4_000
"""Characters of it, from its beginning: checking must not hold anything up."""

LONG_PASSAGE = 250
"""Times that a passage is repeated, to be longer than what `fastokens` would by itself encode in one go."""

# On these the regular expressions of the two differ: the long s and the Kelvin sign, which are an s and a K where case
# doesn't count, and a mark that was a space until Unicode 6.3.
_UNLIKE = frozenset("\u017f\u212a\u180e")

CHARACTERS: Final = 4_000_000
"""What one thread encodes: of base64, that leaves some 20 MB behind; of prose or code, a tenth of it."""

LONG: Final = 150_000
"""Characters from which on a text has a thread of its own. All that are shorter take milliseconds."""


class Encoding:
    """A tokenizer's encoding, for any thread."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._count = 0
        self.quick: EncodingThread | None = None
        """`fastokens`, as long as it is in use."""
        try:
            encode = _fastokens(tokenizer)
            quick = EncodingThread(encode)
            if all(self._agrees(quick, text) for text in _passages()):
                self.quick = EncodingThread(encode)  # The first one keeps what the passages say.
        except (ImportError, ValueError, EncoderFailed) as error:
            log.info("tokenizers alone is used: %s", error)

    def ids(self, text: str) -> array[int]:
        """Token ids, as int32."""
        if (quick := self.quick) is not None and alike(text):
            self._count += 1
            try:
                if self._count % CHECK_EVERY != 0 or self._agrees(quick, text[:CHECKED_AT_MOST]):
                    return array("i", quick(text))
                self.quick = None
            except EncoderFailed as error:
                log.warning("fastokens failed on a text, which is left to tokenizers: %s", error)
        return self._exact(text)

    def _agrees(self, quick: EncodingThread, text: str) -> bool:
        is_alike = array("i", quick(text)) == self._exact(text)
        if not is_alike:
            log.warning("fastokens and tokenizers differ on a text: tokenizers alone is used")
        return is_alike

    def _exact(self, text: str) -> array[int]:
        # The variant without character offsets is up to twice as quick.
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return array("i", encoding.ids)


def alike(text: str) -> bool:
    """Whether both read a text by the same rules."""
    return text.isascii() or _UNLIKE.isdisjoint(text)


def _fastokens(tokenizer: Tokenizer) -> Callable[[str], bytes]:
    """Text -> ids, without special tokens. Raises ImportError where it isn't installed, ValueError where it can't read
    the tokenizer."""
    from fastokens import Tokenizer as QuickTokenizer  # type: ignore[import-untyped,import-not-found,unused-ignore]

    encode = QuickTokenizer.from_json_str(tokenizer.to_str()).encode_batch_flat
    # The one form of its answer that makes no Python number for each token.
    return lambda text: encode([text], False)[0]


def _passages() -> list[str]:
    """What tokenizers tell apart: cases, digits, spaces, line ends, marks, scripts, and every assigned Latin letter."""
    words = "The model's answer WASN'T 12345.678e-9, was it? snake_case camelCase HTTPServer x=y+1;//c"
    blanks = " a  b   c\n\n d \r\n\t e\u00a0f\u3000g \n \n  "
    scripts = "Straße naïve e\u0301 日本語のテキスト 中文字符 한국어 العربية ٣٤ हिन्दी ไทย Ⅷ ² 🙂👩‍👩‍👧 “quoted” — …"
    code = '<|x|> </s> [INST] {"name": "f", "arguments": {"n": [1, 2]}}\n```python\ndef f(x):\n    return x**2\n```'
    letters = "".join(c for c in map(chr, range(1, 0x3000)) if unicodedata.category(c) != "Cn" and c not in _UNLIKE)
    mixed = words + scripts + code + blanks
    return ["", " ", words, blanks, scripts, code, letters, " ".join(letters[:0x250]), mixed, mixed * LONG_PASSAGE]


_Questions = SimpleQueue[tuple[str, SimpleQueue[bytes | BaseException]] | None]
"""Texts, each with a queue for its ids."""


class EncoderFailed(Exception):
    """The encoder gave an error instead of ids, or panicked."""


class EncodingThread:
    """Callable as the encoder is, from any thread; one at a time, but for long texts."""

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._encode = encode
        self._lock = Lock()
        self._thread, self._left = _Thread(encode), CHARACTERS

    def __call__(self, text: str) -> bytes:
        """Raises EncoderFailed."""
        if len(text) >= LONG:
            return _Thread(self._encode).ask(text)
        with self._lock:
            if self._left < len(text):
                self._thread, self._left = _Thread(self._encode), CHARACTERS
            self._left -= len(text)
            return self._thread.ask(text)


class _Thread:
    """Encodes one text after the other, until nobody has this any more.

    Texts and ids are handed over by queues, which cost less than futures do.
    """

    def __init__(self, encode: Callable[[str], bytes]) -> None:
        self._asked: _Questions = SimpleQueue()
        Thread(target=_answer, args=(encode, self._asked), name="encoder", daemon=True).start()
        finalize(self, self._asked.put, None)

    def ask(self, text: str) -> bytes:
        answers: SimpleQueue[bytes | BaseException] = SimpleQueue()
        self._asked.put((text, answers))
        answer = answers.get()
        if isinstance(answer, BaseException):  # of any kind: a panic in Rust is none of Exception's
            raise EncoderFailed(str(answer)) from answer
        return answer


def _answer(encode: Callable[[str], bytes], asked: _Questions) -> None:
    while question := asked.get():
        text, answers = question
        try:
            answers.put(encode(text))
        except BaseException as error:
            answers.put(error)
        del question, text  # else the last text stays in memory until the next one comes
