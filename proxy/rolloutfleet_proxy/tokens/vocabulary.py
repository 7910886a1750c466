"""One model's text <-> token ids, as `renderers` wants it: a `tokenizers` tokenizer, a cache, and a table of bytes.

Encoding (`encoding`) goes through a cache that is bounded in bytes: system prompts and tool blocks come again with
every session. What agents say comes once, so a text is kept from its second time on. Decoding needs no tokenizer: a
token stands for fixed bytes, and text is those bytes joined, so decoding is quick, the same however the tokens arrive,
and safe in any thread.
"""

from __future__ import annotations

import json
import re
import sys
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache
from itertools import pairwise
from threading import Lock
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from rolloutfleet_proxy.caches import ByteCache
from rolloutfleet_proxy.tokens.control_tokens import MARK, ControlTokens
from rolloutfleet_proxy.tokens.encoding import Encoding, alike
from rolloutfleet_proxy.tokens.model_files import ModelFiles

PACKED_FROM = 64
"""Characters from which on a text's ids are packed: scaffolding, which a renderer may look into, is shorter."""

SEEN = 2048
"""Different texts after which one that came once is forgotten, and counts as new."""

_NO_ID = -1
_ENTRY_BYTES = 250
_MOST_SHORT = 1000
_NOTHING = re.compile("(?!)")
_MARKS = ("<think>", "</think>", "<tool_call>", "</tool_call>")


class Packed(int):
    """Consecutive ids, int32, packed into one, which decodes to all their text; no token id equals it.

    Parsers and renderers look at ids one by one in Python. What parsers look for are marks (added tokens), so packing
    all between two of those makes parsing cost as much as the reply has marks, and changes nothing that a parser can
    see. Of a text that is rendered nothing is looked for: `unpacked` takes its ids out again.
    """

    ids: array[int] | npt.NDArray[np.int32]

    def __new__(cls, ids: array[int] | npt.NDArray[np.int32]) -> Packed:
        packed = super().__new__(cls, _NO_ID)
        packed.ids = ids
        return packed


def unpacked(ids: list[int]) -> array[int]:
    """Ids, with those that a `Packing` vocabulary packed taken out again."""
    found = array("i", ids)
    if _NO_ID not in found:
        return found
    found = array("i")
    for token_id in ids:
        found.extend(token_id.ids if isinstance(token_id, Packed) else (token_id,))
    return found


class _TokenBytes(dict[int, bytes]):
    """Token id -> bytes, filled as tokens are met."""

    def __init__(self, tokenizer: Tokenizer, *, size: int, decoder: str | None) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._decoder = decoder
        self._table = np.full(size, None, dtype=object)
        """The same for many ids at once: a lookup by numpy is three times a dict's. Its last row stands for all ids
        beyond it."""

    def __missing__(self, token_id: int) -> bytes:
        if isinstance(token_id, Packed):
            return self._joined(np.asarray(token_id.ids, dtype=np.int32))
        if token_id < 0:
            # Never kept: what packs ids is equal to such a key.
            return b""
        token = self._tokenizer.id_to_token(int(token_id))
        value = self[token_id] = b"" if token is None else self._bytes(token)
        return value

    def _joined(self, ids: npt.NDArray[np.int32]) -> bytes:
        if self._decoder is None:
            return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)).encode()
        places = ids.view(np.uint32)
        try:
            return b"".join(self._table.take(places, mode="clip").tolist())
        except TypeError:  # a token that was not met before
            for place in np.minimum(places, len(self._table) - 1).tolist():
                self._table[place] = self[place]
            return b"".join(self._table.take(places, mode="clip").tolist())

    def _bytes(self, token: str) -> bytes:
        if self._decoder == "byte level":
            try:
                return bytes(map(_BYTE_OF_LETTER.__getitem__, token))
            except KeyError:
                return token.encode()
        if _BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        return token.replace("\u2581", " ").encode()


class Vocabulary:
    """A model's tokenizer, with what `renderers` asks of one (`Packing`)."""

    def __init__(self, files: ModelFiles, *, cache_bytes: int = 16 << 20) -> None:
        tokenizer = files.tokenizer
        self.files = files
        self.name_or_path = files.name
        self.chat_template = files.template.source if files.template else None
        self.eos_token_id = tokenizer.token_to_id(files.tokens.get("eos_token", ""))
        self.unk_token_id = tokenizer.token_to_id(files.tokens.get("unk_token", ""))
        added = tokenizer.get_added_tokens_decoder()
        self.marks = frozenset(added) | {each for each in map(tokenizer.token_to_id, _MARKS) if each is not None}
        self.all_special_tokens = [token.content for token in added.values() if token.special]
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        self.longest_token = max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1)
        """Letters of the longest token: a text has at least its length divided by this of them."""
        self.convert_tokens_to_ids: Callable[[str], Any] = tokenizer.token_to_id
        self._tokenizer = tokenizer
        self._encoding = Encoding(tokenizer)
        self._lock = Lock()
        self.cache: ByteCache[tuple[str, bool], array[int]] = ByteCache(cache_bytes)  # of `encoded`
        self._seen: ByteCache[int, bool] = ByteCache(SEEN)
        """Texts that came once, by their hashes: of two that share one, the second is taken for seen."""

        decoder = _decoder_kind(tokenizer)
        self.decodes_by_bytes = decoder is not None
        self.strips_first_space = decoder == "bytes, first space stripped"
        rows = max(self.size, *self.marks, 0) + 2
        self.token_bytes: Callable[[int], bytes] = _TokenBytes(tokenizer, size=rows, decoder=decoder).__getitem__
        """The bytes that a token stands for; empty for an id outside the vocabulary."""
        self._is_mark = np.isin(np.arange(rows), list(self.marks))
        self.added_pattern = _split_pattern(tokenizer) if decoder == "byte level" else _NOTHING

    def encodes_quickly(self, text: str = "") -> bool:
        """Whether a thousand characters take microseconds, in this text."""
        return self._encoding.quick is not None and MARK not in text and alike(text)

    @cached_property
    def control_tokens(self) -> ControlTokens:
        """What marks the added tokens that texts spell."""
        return ControlTokens(self._tokenizer)

    def encode(self, text: str, **_: object) -> list[int]:
        """Token ids of a text; no special ones are added. The list is the caller's own."""
        return self.encoded(text).tolist()

    def encoded(self, text: str, *, marked: bool = False) -> array[int]:
        """The same as an array, which is shared: it is not to be changed.

        `marked`: with what `control_tokens` marked as text.
        """
        key = (text, marked)
        with self._lock:
            ids = self.cache.get(key)
        if ids is not None:
            return ids
        # Others must not wait for a long text.
        found = self.control_tokens.ids(text) if marked else self._encoding.ids(text)
        with self._lock:
            if self._seen.get(hash(key)):
                self.cache.put(key, found, sys.getsizeof(text) + len(found) * found.itemsize + _ENTRY_BYTES)
            self._seen.put(hash(key), True, 1)
        return found

    def decode(self, token_ids: Iterable[int], **_: object) -> str:
        """Text of token ids (and `Packed` ones), special ones included; bytes that are not UTF-8 become U+FFFD."""
        if not self.decodes_by_bytes:
            return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))
        text = b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips_first_space else text

    def packed(self, token_ids: Sequence[int]) -> list[int]:
        """The same ids, with what lies between two marks packed into one."""
        ids = np.array(token_ids, dtype=np.int32)
        marks = self._is_mark.take(ids.view(np.uint32), mode="clip").nonzero()[0].tolist()
        result: list[int] = []
        for before, mark in pairwise([-1, *marks, len(ids)]):
            if mark > before + 1:
                result.append(Packed(ids[before + 1 : mark]))
            result += ids[mark : mark + 1].tolist()
        return result


class Packing:
    """The tokenizer object of `renderers`' protocol (`renderers.base.ChatTemplateTokenizer`): a vocabulary that packs
    the ids of a text into one.

    Renderers go through ids one by one in Python, to note for each of them what we don't ask for. Packed, rendering
    costs as much as a conversation has messages, not as much as it has tokens.

    `marks`: what the vocabulary's `control_tokens` marked is text.
    """

    def __init__(self, vocabulary: Vocabulary, *, marks: bool) -> None:
        self._vocabulary = vocabulary
        self._marks = marks
        # What renderers write around messages, and marks that they ask for by name, several times for each message.
        self._short = lru_cache(_MOST_SHORT)(vocabulary.encode)
        self.convert_tokens_to_ids = lru_cache(_MOST_SHORT)(vocabulary.convert_tokens_to_ids)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._vocabulary, name)

    def encode(self, text: str, **_: object) -> list[int]:
        marked = self._marks and MARK in text
        if marked or len(text) >= PACKED_FROM:
            return [Packed(self._vocabulary.encoded(text, marked=marked))]
        return self._short(text).copy()

    def apply_chat_template(
        self, messages: Sequence[Any], *, tokenize: bool, return_dict: bool, **variables: Any
    ) -> list[int]:
        """The ids of the model's own template over the messages, which is what renderers ask for (`tokenize`).

        Raises ValueError where the model has none, or its template refuses the messages.
        """
        if self._vocabulary.files.template is None:
            raise ValueError(f"{self._vocabulary.name_or_path} has no chat template")
        text = self._vocabulary.files.template.render(messages, **variables)
        if self._marks and MARK in text:
            return [Packed(self._vocabulary.encoded(text, marked=True))]
        # Piece by piece between added tokens, as `tokenizers` does itself, so that the cache can serve them.
        pieces = filter(None, self._vocabulary.added_pattern.split(text))
        return [token_id for piece in pieces for token_id in self._vocabulary.encode(piece)]


_PRINTABLE = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF_LETTER = dict(zip(map(chr, [*_PRINTABLE, *range(256, 512)]), [*_PRINTABLE, *_OTHERS], strict=False))
"""The bytes by the letters that byte-level BPE writes for them (GPT-2's `bytes_to_unicode`)."""
_BYTE_TOKEN = re.compile(r"<0x[0-9A-F]{2}>")


# Parts of decoders, as `tokenizers` describes them.
_SPACE = {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}
_SPACED = [_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}]
_STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _decoder_kind(tokenizer: Tokenizer) -> str | None:
    """How tokens become text; None where a token's text depends on its neighbours in other ways."""
    if tokenizer.decoder is None:
        return None
    decoder = json.loads(tokenizer.decoder.__getstate__())
    parts = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
    if [part["type"] for part in parts] == ["ByteLevel"]:
        return "byte level"
    if parts == _SPACED:
        return "bytes"
    return "bytes, first space stripped" if parts == [*_SPACED, _STRIP] else None


def _split_pattern(tokenizer: Tokenizer) -> re.Pattern[str]:
    """A pattern that cuts text at added tokens, unless these take part in more than their own letters."""
    pre_tokenizer = tokenizer.pre_tokenizer
    adds_space = pre_tokenizer is not None and b'"add_prefix_space":true' in pre_tokenizer.__getstate__()
    added = tokenizer.get_added_tokens_decoder().values()
    if adds_space or any(token.lstrip or token.rstrip or token.single_word or token.normalized for token in added):
        return _NOTHING
    longest_first = sorted((token.content for token in added), key=len, reverse=True)
    return re.compile(f"({'|'.join(map(re.escape, longest_first)) or '(?!)'})")
