"""Draws replies at random from grammars, with the xgrammar of the real SGLang. Run by its Python, not the project's.

Reads cases as JSON `[{tokenizer, stop, marks, ends, tags: [{tag: structural tag, written: [token ids]}]}]`, and writes
for each tag of each case `{drawn: [token ids], taken: [whether it takes what is written]}`. All tags of a case go
through one compiler, as in an engine, and through one without a cache beside it: where the two differ in what they
allow, that is an error.
"""

import json
import random
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
import xgrammar
from tokenizers import Tokenizer

DRAWS = 3
LONGEST = 800
WANDERING = 60
"""Tokens from which on a draw hurries to its end."""


class Drawer:
    def __init__(self, case: dict[str, Any]) -> None:
        tokenizer = Tokenizer.from_file(case["tokenizer"])
        self.size = tokenizer.get_vocab_size(with_added_tokens=True)
        vocabulary = [tokenizer.id_to_token(token) or "" for token in range(self.size)]
        self.added = set(tokenizer.get_added_tokens_decoder())
        self.marks = set(case["marks"])
        self.ends = [tokenizer.encode(text, add_special_tokens=False).ids for text in case["ends"]]
        self.closing = [tokenizer.token_to_id(text) for text in ('"', "}", "]", "1")]
        information = xgrammar.TokenizerInfo(
            vocabulary, xgrammar.VocabType.BYTE_LEVEL, vocab_size=self.size, stop_token_ids=[case["stop"]]
        )
        self.stop = case["stop"]
        self.shared = xgrammar.GrammarCompiler(information)
        self.plain = xgrammar.GrammarCompiler(information, cache_enabled=False)

    def compiled(self, tag: str) -> list[Any]:
        return [each.compile_structural_tag(tag) for each in (self.shared, self.plain)]

    def draw(self, tag: str, compiled: list[Any], seed: int) -> list[int]:
        rng = random.Random(seed)
        matchers = list(map(xgrammar.GrammarMatcher, compiled))
        drawn: list[int] = []
        while len(drawn) < LONGEST:
            end = self.end(matchers) if len(drawn) > WANDERING else []
            if end:
                drawn += end
                continue
            allowed, same = map(self.allowed, matchers)
            if allowed != same:
                raise SystemExit(f"the compiler took another grammar for this one: {tag}")
            token = self.choose(allowed, rng, ending=len(drawn) > WANDERING)
            if token == self.stop:
                return drawn
            for matcher in matchers:
                assert matcher.accept_token(token)
            drawn.append(token)
        raise SystemExit(f"no end within {LONGEST} tokens: {tag}")

    def end(self, matchers: list[Any]) -> list[int]:
        """What ends a text that could go on for ever, where one of the format's ends may come; accepted already."""
        for ids in self.ends:
            for matcher in matchers:
                taken = list(takewhile(matcher.accept_token, ids))
                if taken != ids:
                    matcher.rollback(len(taken))
                    break
            else:
                return ids
        return []

    def takes(self, compiled: Any, written: list[int]) -> bool:
        matcher = xgrammar.GrammarMatcher(compiled)
        return all(matcher.accept_token(token) for token in [*written, self.stop])

    def allowed(self, matcher: Any) -> list[int]:
        mask = xgrammar.allocate_token_bitmask(1, self.size)
        matcher.fill_next_token_bitmask(mask)
        bits = mask[0].unsqueeze(1).bitwise_right_shift(torch.arange(32, dtype=torch.int32)) & 1
        allowed: list[int] = bits.flatten()[: self.size].nonzero().flatten().tolist()
        return allowed

    def choose(self, allowed: list[int], rng: random.Random, *, ending: bool) -> int:
        marks = [token for token in allowed if token in self.marks or token == self.stop]
        # Within a JSON string every mark counts as text, which a model has no reason to write.
        texts = [token for token in allowed if token not in self.added]
        if texts and self.marks - {self.stop} <= set(marks):
            marks = []
        if marks and (not texts or ending or rng.random() < 0.2):
            return rng.choice(marks)
        hurried = [token for token in self.closing if token in texts] if ending or rng.random() < 0.2 else []
        return hurried[0] if hurried else rng.choice(texts)


def main() -> None:
    cases = json.loads(Path(sys.argv[1]).read_text())
    drawn = []
    for case in cases:
        drawer = Drawer(case)
        tags = []
        for each in case["tags"]:
            compiled = drawer.compiled(each["tag"])
            tags.append(
                {
                    "drawn": [drawer.draw(each["tag"], compiled, seed) for seed in range(DRAWS)],
                    "taken": [drawer.takes(compiled[0], written) for written in each["written"]],
                }
            )
        drawn.append(tags)
    Path(sys.argv[2]).write_text(json.dumps(drawn))


main()
