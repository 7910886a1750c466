"""Scripts as token ids: the same for the same engine seed, prompt and sampling seed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy

from rolloutfleet_engine.model import Model
from rolloutfleet_engine.scene import ChatReader, Thinking
from rolloutfleet_engine.script import babble, speak


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """What the model will say to a prompt if nothing stops it."""

    key: bytes
    """Decides the log-probabilities, with the weight version."""

    begun: int
    """Tokens of the draft that stand at the end of the prompt already: the part that an earlier call made."""

    ids: tuple[int, ...]
    """The tokens still to come, without an end token."""


class Writer:
    def __init__(self, *, model: Model, seed: int, noncanonical: float) -> None:
        self._model = model
        self._seed = seed
        self._noncanonical = noncanonical
        self._reader = ChatReader(model)

    def draft(self, prompt: Sequence[int], *, sampling_seed: int | None, at_least: int = 0) -> Draft:
        """The draft for `prompt`, lengthened to `at_least` tokens.

        A prompt that ends with the beginning of the draft of its stem gets the rest of that draft: a generation that
        is cut and sent again with its part ends as if it had never been cut.
        """
        for opening, thinking in self._reader.openings(prompt):
            key = self._key(prompt[:opening], sampling_seed)
            part = list(prompt[opening:])
            ids = self._write(prompt[:opening], thinking=thinking, key=key)
            if part != ids[: len(part)] and len(part) < len(ids):
                continue
            ids = self._lengthen(ids, key=key, length=len(part) + at_least)
            if part == ids[: len(part)]:
                return Draft(key=key, begun=len(part), ids=tuple(ids[len(part) :]))
        raise AssertionError("the end of a prompt is always an opening")

    def logprobs(self, draft: Draft, *, version: str, count: int) -> list[float]:
        """The log-probability of each of the first `count` tokens under one weight version: float32, finite, ≤ 0."""
        source = numpy.random.default_rng(
            int.from_bytes(blake2b(draft.key + version.encode(), digest_size=16).digest())
        )
        drawn = source.random(draft.begun + count, dtype=numpy.float32)[draft.begun :]
        values: list[float] = (numpy.log1p(-drawn) + numpy.float32(0)).tolist()
        return values

    def _key(self, stem: Sequence[int], sampling_seed: int | None) -> bytes:
        digest = blake2b(array("q", stem).tobytes(), digest_size=16)
        digest.update(f"/{self._seed}/{sampling_seed}".encode())
        return digest.digest()

    def _write(self, stem: Sequence[int], *, thinking: Thinking, key: bytes) -> list[int]:
        rng = random.Random(key)
        text = speak(self._reader.read(stem, thinking=thinking), rng)
        return self._model.split_some(self._model.encode(text), share=self._noncanonical, rng=rng)

    def _lengthen(self, ids: list[int], *, key: bytes, length: int) -> list[int]:
        rng = random.Random(key + b"more")
        while len(ids) < length:
            ids = ids + self._model.split_some(self._model.encode(babble(rng)), share=self._noncanonical, rng=rng)
        return ids
