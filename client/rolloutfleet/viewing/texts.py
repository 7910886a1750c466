"""What token ids stand for, by a model's own tokenizer: for files, which hold ids alone."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

LONGEST_SPLIT: Final = 4
"""Tokens over which a character is split at the most: its bytes."""
_BROKEN: Final = "\ufffd"

Texts = Callable[[Sequence[int]], list[str | None]]
"""A text for each id; of a character that is split over several the first has it, and the others None."""


class NoTokenizer(Exception):
    """It can't be read; the message says why."""


def ids_alone(ids: Sequence[int]) -> list[str | None]:
    """Where there is no tokenizer: the numbers."""
    return [f"{token_id} " for token_id in ids]


def load_texts(path: Path | None) -> Texts:
    """Of a folder with a tokenizer.json, or of the file; of none, the ids. Raises NoTokenizer."""
    if path is None:
        return ids_alone
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise NoTokenizer("showing text of tokens takes tokenizers: pip install tokenizers") from None
    file = path / "tokenizer.json" if path.is_dir() else path
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises nothing narrower
        raise NoTokenizer(f"{file} is not a tokenizer: {error}") from None
    return lambda ids: _texts(tokenizer, list(ids))


def _texts(tokenizer: Any, ids: list[int]) -> list[str | None]:
    found: list[str | None] = []
    while len(found) < len(ids):
        start = len(found)
        for end in range(start + 1, min(len(ids), start + LONGEST_SPLIT) + 1):
            text = _text(tokenizer, ids, start, end)
            if _BROKEN not in text:
                break
        else:
            end, text = start + 1, _text(tokenizer, ids, start, start + 1)
        found += [text, *[None] * (end - start - 1)]
    return found


def _text(tokenizer: Any, ids: list[int], start: int, end: int) -> str:
    """Of the ids from `start` to `end`. Some tokenizers strip the space that a text begins with, so one goes before."""
    if start == 0:
        return str(tokenizer.decode(ids[:end], skip_special_tokens=False))
    before = str(tokenizer.decode(ids[start - 1 : start], skip_special_tokens=False))
    together = str(tokenizer.decode(ids[start - 1 : end], skip_special_tokens=False))
    if _BROKEN not in before and together.startswith(before):
        return together[len(before) :]
    return str(tokenizer.decode(ids[start:end], skip_special_tokens=False))
