"""Answers under a grammar: every token is one that the grammar allows after those before it.

`llguidance` says which those are, as it does in SGLang where that is told to use it (`--grammar-backend llguidance`).
"""

import contextlib
import random
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from time import thread_time
from typing import Final

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from rolloutfleet_engine.model import Model
from rolloutfleet_engine.requests import GrammarRefused, SamplingParams
from rolloutfleet_engine.structural_tags import SPACING, lark_of, lark_of_ebnf

RANDOM_TOKENS = 24
"""Tokens that are drawn at random; from then on those that bring an answer to its end go first."""
MAX_TOKENS: Final = 4_000
"""Tokens at which an answer is given up where its grammar never lets it end."""
MAX_COUNT: Final = 1_000_000
"""Of what a grammar repeats: `llguidance` writes items out (a million take 0.5 s and 150 MB)."""
LIMITS: Final = LLParserLimits(
    initial_lexer_fuel=10_000_000, step_lexer_fuel=1_000_000, step_max_items=200_000, max_lexer_states=50_000
)
"""Of compiling, about 0.2 s, and of each token, about 70 ms and in all 100 MB."""
DEADLINE: Final = 2.0
"""Seconds of CPU time within which an answer is written: every other request waits for it."""
BACKENDS: Final = ("xgrammar", "llguidance", "outlines", "none")
"""What SGLang can be told to compile grammars with; what the first of them takes, the simulated engine does."""
CLOSING: Final = ('"', "}", "]", ")", ">", ",", "null", "1")
"""Texts that lead to an end in most grammars, in the order in which they are tried."""


class Grammars:
    """Writes what a request's grammar allows. The tokenizer is prepared at the first such request."""

    def __init__(self, model: Model, *, end_id: int | None) -> None:
        self._model = model
        self._end_id = end_id

    def write(self, grammar: str, wishes: Sequence[list[int]], rng: random.Random, *, most: int) -> list[int]:
        """Tokens that the grammar takes whole, without an end token: the first of the wishes that it takes; else it is
        begun with the last, as far as that goes, and the rest is drawn token by token, up to so many. Raises
        `GrammarRefused` where the grammar is none.
        """
        matcher = self._matcher(grammar)
        for wished in wishes:
            matcher.reset()
            begun = wished[: matcher.validate_tokens(wished)]
            matcher.consume_tokens(begun)
            if begun == wished and matcher.is_accepting():
                return begun
        return [*begun, *self._draw(matcher, rng, most=min(most, MAX_TOKENS) - len(begun))]

    def _draw(self, matcher: LLMatcher, rng: random.Random, *, most: int) -> list[int]:
        drawn: list[int] = []
        started = thread_time()
        while len(drawn) < most and not matcher.is_stopped():
            if thread_time() - started > DEADLINE:
                raise GrammarRefused(f"Failed to follow the grammar: after {DEADLINE:g} s it had {len(drawn)} tokens")
            if matcher.is_accepting() and (len(drawn) >= RANDOM_TOKENS or rng.random() < 0.5):
                break
            allowed = [token for token, bias in enumerate(matcher.compute_logit_bias()) if bias]
            token = self._choose(allowed, rng, ending=len(drawn) >= RANDOM_TOKENS)
            if token is None:
                break
            matcher.consume_token(token)
            drawn.append(token)
        if matcher.is_error():
            raise GrammarRefused(f"Failed to follow the grammar: {matcher.get_error()}")
        return drawn

    def _choose(self, allowed: Sequence[int], rng: random.Random, *, ending: bool) -> int | None:
        texts = [token for token in allowed if token not in self._model.added_ids]
        if not texts:
            marks = [token for token in allowed if token not in self._model.special_ids and token != self._end_id]
            return rng.choice(marks) if marks else None
        first = [token for token in self._closing if token in texts] if ending else []
        return first[0] if first else rng.choice(texts)

    @cached_property
    def _closing(self) -> list[int]:
        encoded = (self._model.encode(text) for text in CLOSING)
        return [ids[0] for ids in encoded if len(ids) == 1]

    @cached_property
    def _tokenizer(self) -> LLTokenizer:
        file = str(self._model.path / "tokenizer.json")
        return LLTokenizer(file, n_vocab=self._model.vocabulary_size, eos_token=self._end_id)

    def _matcher(self, grammar: str) -> LLMatcher:
        matcher = LLMatcher(self._tokenizer, grammar, log_level=0, limits=LIMITS)
        if matcher.is_error():
            raise GrammarRefused(f"Failed to compile the grammar: {matcher.get_error()}")
        return matcher


def check_backend(sampling: SamplingParams, backend: str) -> None:
    """Raises `GrammarRefused`, in SGLang's words, for a grammar that it compiles with another backend than this one."""
    if backend == "none" and sampling.constrained:
        raise GrammarRefused(
            "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported when the server is "
            "launched with --grammar-backend none"
        )
    if backend == "llguidance" and sampling.structural_tag is not None:
        raise GrammarRefused("Failed to compile structural_tag grammar: ")
    for kind in ("ebnf", "structural_tag") if backend == "outlines" else ():
        if getattr(sampling, kind) is not None:
            raise GrammarRefused(f"Failed to compile {kind} grammar: Unknown grammar error")


def grammar_of(sampling: SamplingParams, marks: Mapping[str, int]) -> str | None:
    """The request's grammar in `llguidance`'s form; None where it asks for none. `marks` are the model's added tokens.
    Raises `GrammarRefused`."""
    _check_counts(sampling)
    try:
        if sampling.json_schema is not None:
            return LLMatcher.grammar_from_json_schema(sampling.json_schema, overrides=SPACING)
        if sampling.regex is not None:
            return LLMatcher.grammar_from_regex(sampling.regex)
        if sampling.ebnf is not None:
            return LLMatcher.grammar_from_lark(lark_of_ebnf(sampling.ebnf))
        if sampling.structural_tag is not None:
            return LLMatcher.grammar_from_lark(lark_of(sampling.structural_tag, marks))
    except ValueError as error:
        raise GrammarRefused(f"Failed to compile the grammar: {error}") from None
    return None


_COUNTS: Final = re.compile(r'(?:"(?:min|max)(?:Items|Length|Properties|Contains)?"\s*:\s*|[{,]\s*)([0-9.eE+]{1,40})')


def _check_counts(sampling: SamplingParams) -> None:
    """Raises `GrammarRefused` for what would be written out."""
    for text in (sampling.json_schema, sampling.regex, sampling.ebnf, sampling.structural_tag):
        for found in _COUNTS.finditer(text or ""):
            with contextlib.suppress(ValueError):
                if float(found[1]) > MAX_COUNT:
                    raise GrammarRefused(f"Failed to compile the grammar: it repeats something {found[1]} times")
