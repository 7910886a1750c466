"""Scripts as token ids: the same for the same engine seed, prompt and sampling seed."""

import json
import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy

from rolloutfleet_engine.bias import Bias
from rolloutfleet_engine.cues import reply_to
from rolloutfleet_engine.grammar import Grammars, grammar_of
from rolloutfleet_engine.model import Model
from rolloutfleet_engine.options import EngineOptions
from rolloutfleet_engine.requests import SamplingParams
from rolloutfleet_engine.scene import ChatReader, Thinking
from rolloutfleet_engine.script import babble, speak, speak_on_cue
from rolloutfleet_engine.structural_tags import example_of, example_of_tag


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """What the model will say to a prompt if nothing stops it."""

    key: bytes
    """Decides the log-probabilities, with the weight version."""

    begun: int
    """Tokens of the draft that stand at the end of the prompt already: the part that an earlier call made."""

    ids: tuple[int, ...]
    """The tokens still to come, without an end token."""

    end: int | None
    """The end token behind them; None where none comes."""


class Writer:
    def __init__(self, model: Model, options: EngineOptions) -> None:
        self._model = model
        self._seed, self._noncanonical, self._loop = options.seed, options.noncanonical, options.loop
        self._end_id = model.token_id("<|im_end|>") or min(model.end_ids, default=None)
        self._grammars = Grammars(model, end_id=self._end_id)
        self._reader = ChatReader(model)

    def draft(self, prompt: Sequence[int], *, sampling: SamplingParams, limit: int = 0) -> Draft:
        """The draft for `prompt`; one that does not end has at least `limit` tokens, unless a grammar holds.

        A prompt that ends with the beginning of the draft of its stem gets the rest of that draft: a generation that
        is cut and sent again with its part ends as if it had never been cut. A grammar begins anew, as in SGLang, and
        lets no token in for its bias.
        """
        bias = Bias(None if sampling.constrained else sampling.logit_bias, self._model)
        endless = sampling.ignore_eos or not (self._end_id is None or bias.lets(self._end_id))
        end = None if endless else self._end_id
        grammar = grammar_of(sampling, self._model.marks)
        if grammar is not None:
            return self._constrained(prompt, grammar, sampling, end=end, most=limit)
        at_least = limit if endless else 0
        for opening, thinking in self._reader.openings(prompt):
            key = self._key(prompt[:opening], sampling.sampling_seed)
            part = list(prompt[opening:])
            ids = bias.applied(self._write(prompt[:opening], thinking=thinking, key=key), key=key)
            if part != ids[: len(part)] and len(part) < len(ids):
                continue
            ids = bias.applied(self._lengthen(ids, key=key, length=len(part) + at_least), key=key)
            if part == ids[: len(part)]:
                return Draft(key=key, begun=len(part), ids=tuple(ids[len(part) :]), end=end)
        raise AssertionError("the end of a prompt is always an opening")

    def _constrained(
        self, prompt: Sequence[int], grammar: str, sampling: SamplingParams, *, end: int | None, most: int
    ) -> Draft:
        key = self._key(prompt, sampling.sampling_seed)
        rng = random.Random(key)
        wishes = self._wishes(prompt, sampling, key=key, rng=rng)
        return Draft(key=key, begun=0, ids=tuple(self._grammars.write(grammar, wishes, rng, most=most)), end=end)

    def _wishes(
        self, prompt: Sequence[int], sampling: SamplingParams, *, key: bytes, rng: random.Random
    ) -> list[list[int]]:
        """What may suit the grammar of a request: the script, or what is made for it."""
        if sampling.json_schema is not None:
            value = self._model.encode(example_of(json.loads(sampling.json_schema), rng))
            return [self._model.split_some(value, share=self._noncanonical, rng=rng)]
        if sampling.structural_tag is None:
            return [self._write(prompt, thinking=Thinking.CLOSED, key=key)]
        *_, (_, thinking) = self._reader.openings(prompt)
        example = example_of_tag(sampling.structural_tag, self._model.encode, rng)
        split = self._model.split_some(example, share=self._noncanonical, rng=rng)
        return [self._write(prompt, thinking=thinking, key=key), split]

    def logprobs(self, draft: Draft, version: str, count: int) -> list[float]:
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
        scene, cues = self._reader.read(stem, thinking=thinking), self._loop.cues
        if cues:
            text = speak_on_cue(reply_to(self._reader.messages(stem), cues), scene, rng)
        else:
            text = speak(scene, rng, self._loop)
        return self._model.split_some(self._model.encode(text), share=self._noncanonical, rng=rng)

    def _lengthen(self, ids: list[int], *, key: bytes, length: int) -> list[int]:
        rng = random.Random(key + b"more")
        while len(ids) < length:
            ids = ids + self._model.split_some(self._model.encode(babble(rng)), share=self._noncanonical, rng=rng)
        return ids
