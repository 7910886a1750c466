"""What agents and engines say: prose for the load generator, and replies of the shipped model for the stub."""

import json
import pydoc_data.topics
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

STOP = "<|im_end|>"


@dataclass(frozen=True, slots=True)
class Texts:
    """Files for the two programs, and how long a reply's text is on average, in bytes of JSON."""

    prose: Path
    replies: Path
    reply_bytes: int
    reply_tokens: int


def prose() -> str:
    """Some 450 KB of English about Python, with code in it: the texts that `help()` shows, in ASCII."""
    topics = pydoc_data.topics.topics
    text = "\n".join(topics[name] for name in sorted(topics))
    for mark, plain in {"\u201c": '"', "\u201d": '"', "\u2026": "..."}.items():
        text = text.replace(mark, plain)
    ascii_only = text.encode("ascii", "ignore").decode("ascii")
    return re.sub(r"\n{3,}", "\n\n", re.sub(r"[*=]{3,}", "---", ascii_only))


def write(
    folder: Path,
    *,
    model: Path,
    name: str,
    tokens: int = 1000,
    variants: int = 64,
    seed: int = 1,
    said: Sequence[str] = (),
) -> Texts:
    """Make both files. Replies are those that are `said`; else they have `tokens` ids ±20 %. The last id of each is the
    one that ends a turn."""
    text = prose()
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    stop = tokenizer.token_to_id(STOP)
    if stop is None:
        raise ValueError(f"the tokenizer in {model} has no {STOP}")
    rng = random.Random(seed)
    replies = [_written(tokenizer, tokenizer.encode(each, add_special_tokens=False).ids, stop) for each in said]
    replies = replies or [_reply(text, tokenizer, stop=stop, tokens=tokens, rng=rng) for _ in range(variants)]
    texts = Texts(
        prose=folder / "prose.txt",
        replies=folder / "replies.json",
        reply_bytes=sum(len(json.dumps(reply["text"])) for reply in replies) // len(replies),
        reply_tokens=sum(len(reply["ids"]) for reply in replies) // len(replies),
    )
    texts.prose.write_text(text, encoding="utf-8")
    texts.replies.write_text(json.dumps({"model": name, "stop": stop, "variants": replies}), encoding="utf-8")
    return texts


def _reply(text: str, tokenizer: Tokenizer, *, stop: int, tokens: int, rng: random.Random) -> dict[str, Any]:
    wanted = rng.randint(tokens * 8 // 10, tokens * 12 // 10) - 1
    start = rng.randrange(len(text) - 16 * wanted)
    # From a word's start: a reply doesn't begin with a blank, which a chat format would strip.
    start = text.index(" ", start) + 1
    piece = text[start : start + 16 * wanted].lstrip()
    ids = tokenizer.encode(piece, add_special_tokens=False).ids[:wanted]
    # Nor does it end with one.
    while tokenizer.decode([ids[-1]]).endswith((" ", "\n")):
        ids.pop()
    return _written(tokenizer, ids, stop)


def _written(tokenizer: Tokenizer, ids: list[int], stop: int) -> dict[str, Any]:
    return {
        "ids": [*ids, stop],
        "text": tokenizer.decode(ids),
        "tokens": [tokenizer.decode([token]) for token in ids] + [STOP],
    }
