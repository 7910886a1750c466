"""What the engine knows of a model: its tokenizer, its limits, and how a token can be written with other tokens."""

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders


def model_path() -> Path:
    """The model directory that ships with the package: a Qwen3-style tokenizer of 2,048 tokens, no weights."""
    return Path(__file__).parent / "model"


def byte_of_character() -> dict[str, int]:
    """The alphabet of byte-level BPE (GPT-2's): printable bytes stand for themselves, the others for U+0100 and on."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(256 + place): byte for place, byte in enumerate(others)}


class Model:
    """A model directory as the engine uses it.

    Raises `FileNotFoundError` where the directory has no tokenizer.json.
    """

    def __init__(self, path: Path) -> None:
        file = path / "tokenizer.json"
        if not file.is_file():
            raise FileNotFoundError(f"{path} has no tokenizer.json: the engine needs a directory with a tokenizer")
        self.path = path
        self.config = read_json(path / "config.json")
        self.tokenizer = Tokenizer.from_file(str(file))
        self.context_length = int(self.config.get("max_position_embeddings", 131_072))
        self.vocabulary_size = max(self.tokenizer.get_vocab_size(), int(self.config.get("vocab_size", 0)))
        self.end_ids = self._end_ids()
        added = self.tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self.added_ids = frozenset(added)
        self.marks = {token.content: token_id for token_id, token in added.items()}
        self._ids = self.tokenizer.get_vocab()
        self._pieces = {token_id: piece for piece, token_id in self._ids.items()}
        self._bytes = self._bytes_of_tokens()
        self._splits: dict[int, tuple[tuple[int, int], ...]] = {}

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; bytes that are not text become U+FFFD."""
        if self._bytes is None:
            text: str = self.tokenizer.decode(list(ids), skip_special_tokens=skip_special_tokens)
            return text
        skipped = self.special_ids if skip_special_tokens else frozenset[int]()
        table = self._bytes
        return b"".join(table.get(token_id, b"") for token_id in ids if token_id not in skipped).decode(
            errors="replace"
        )

    def token_id(self, token: str) -> int | None:
        found: int | None = self.tokenizer.token_to_id(token)
        return found

    def splits(self, token_id: int) -> tuple[tuple[int, int], ...]:
        """The pairs of tokens that decode to what `token_id` decodes to; none for added tokens and single bytes."""
        if token_id in self.added_ids:
            return ()
        if token_id not in self._splits:
            self._splits[token_id] = self._find_splits(self._pieces.get(token_id, ""))
        return self._splits[token_id]

    def split_some(self, ids: Iterable[int], *, share: float, rng: random.Random) -> list[int]:
        """`ids` with about `share` of the tokens that can be split written as two: same text, other ids.

        The tokenizer itself would have written one, so encoding the text again never gives these ids.
        """
        written: list[int] = []
        for token_id in ids:
            pairs = self.splits(token_id) if share and rng.random() < share else ()
            if pairs:
                written.extend(rng.choice(pairs))
            else:
                written.append(token_id)
        return written

    def _find_splits(self, piece: str) -> tuple[tuple[int, int], ...]:
        ids = self._ids
        return tuple(
            (ids[piece[:place]], ids[piece[place:]])
            for place in range(1, len(piece))
            if piece[:place] in ids and piece[place:] in ids
        )

    def _end_ids(self) -> frozenset[int]:
        """Where the engine stops by itself, as SGLang reads it: both configurations and the tokenizer's own end."""
        ids: set[int] = set()
        for source in (self.config, read_json(self.path / "generation_config.json")):
            value = source.get("eos_token_id")
            ids.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
        end = read_json(self.path / "tokenizer_config.json").get("eos_token")
        token = end.get("content") if isinstance(end, dict) else end
        if isinstance(token, str) and (token_id := self.token_id(token)) is not None:
            ids.add(token_id)
        return frozenset(ids)

    def _bytes_of_tokens(self) -> dict[int, bytes] | None:
        """The bytes of each token, or None where tokens are not bytes and only the tokenizer can join them."""
        if not isinstance(self.tokenizer.decoder, decoders.ByteLevel):
            return None
        table = byte_of_character()
        return {
            token_id: piece.encode() if token_id in self.added_ids else bytes(table[mark] for mark in piece)
            for token_id, piece in self._pieces.items()
        }


def read_json(file: Path) -> dict[str, Any]:
    """The object in `file`, empty where there is no such file."""
    if not file.is_file():
        return {}
    value = json.loads(file.read_text("utf-8"))
    return value if isinstance(value, dict) else {}
