"""gpt-oss: its real vocabulary, since `openai_harmony` checks the file (`toolchain.harmony`), and merges for the words
that are most in use."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Final

from tests.unit.proxy.tokens.models.families import HARMONY_TOKENS
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from toolchain import harmony

from rolloutfleet_proxy.tokens.vocabulary import _BYTE_OF_LETTER

MERGED: Final = 20_000
"""Tokens that texts may be cut into, of 200,000: merges for all take ten seconds to make and read. Of what the rest
stands for, a prompt that `openai_harmony` writes has the one token, and a text that is encoded here has several."""


def write_model(directory: Path) -> Path:
    """A model directory with gpt-oss's tokenizer; merges are found by splitting each token at its best rank."""
    letters = {byte: letter for letter, byte in _BYTE_OF_LETTER.items()}

    def spelled(token: bytes) -> str:
        return "".join(map(letters.__getitem__, token))

    lines = (line.split() for line in (harmony.folder() / harmony.FILE).read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    merges = []
    for token in sorted(ranks, key=ranks.__getitem__)[:MERGED]:
        halves = [(token[:cut], token[cut:]) for cut in range(1, len(token))]
        known = [(left, right) for left, right in halves if left in ranks and right in ranks]
        known.sort(key=lambda pair: (ranks[pair[0]], ranks[pair[1]]))
        merges += [(spelled(left), spelled(right)) for left, right in known]
    tokenizer = Tokenizer(models.BPE({spelled(token): rank for token, rank in ranks.items()}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(name, special=True, normalized=False) for name in HARMONY_TOKENS.values()])
    assert all(tokenizer.token_to_id(name) == token_id for token_id, name in HARMONY_TOKENS.items())
    directory.mkdir(parents=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    (directory / "config.json").write_text(json.dumps({"model_type": "gpt_oss", "max_position_embeddings": 131072}))
    return directory
