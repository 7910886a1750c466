"""Control tokens that other people's texts spell: a tool's result with `<|im_end|>` in it must not end the message.

A format knows text, not whose it is. So every spelling of an added token in what users, tools and system messages say,
and in the tools, is marked before the format writes it: a mark behind its first character, so that it spells no token
any more. Where the format's text is encoded, the marks are taken out behind the step that looks for added tokens: what
was marked is encoded as any text is, and the format's own tokens stay.

The mark is printable ASCII that neither JSON nor XML escapes: whatever formats do to text leaves it where it is. Where
a text has its letters itself, they are written so that they come out again.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer
from tokenizers.normalizers import Replace
from tokenizers.normalizers import Sequence as Normalizers

from rolloutfleet_proxy.domain.messages import Message

MARK: Final = "`^~|~^~"
"""In a text that `ControlTokens.marked` made, where there is something to take out. A digit follows it. Its first
letter comes once, so that no two of them overlap."""
_INSIDE: Final = f"{MARK}0"
_OWN: Final = f"{MARK}1"
_BLANK: Final = " \t\r\n\u2581"
_NAMES: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keys of a schema under which others are names, of which no format makes tags."""
_READ: Final = frozenset({"type", "function", "name", "description", "parameters", "required", "items", *_NAMES})
"""Keys that formats look for: what they write for them is their own."""


@dataclass(frozen=True, slots=True)
class Marked:
    """A conversation whose texts spell no control token."""

    messages: list[Message]
    tools: list[Any] | None
    counts: Sequence[int] = ()
    """Spellings that were marked, in each message."""
    in_tools: int = 0

    def count(self, start: int) -> int:
        """Spellings in the messages from `start` on; from 0 on, in the tools as well."""
        return sum(self.counts[start:]) + (0 if start else self.in_tools)


class ControlTokens:
    """A tokenizer's added tokens, special or not, as texts may spell them; for any thread.

    White space is none of them, nor are words that a vocabulary was extended by: they control nothing. `tokenizer` is
    not changed.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        added = tokenizer.get_added_tokens_decoder()
        self._tokenizer = _unmarking(tokenizer, added.values())
        ours = {token_id: self._tokenizer.token_to_id(token.content) for token_id, token in added.items()}
        self._ids = {there: here for here, there in ours.items() if there != here}
        """Ids of the tokenizer here -> ids of the model, where they differ."""
        controls = [token for token in added.values() if _controls(token)]
        spellings = {token.content for token in controls}
        if tokenizer.normalizer is not None:
            spellings |= {tokenizer.normalizer.normalize_str(token.content) for token in controls if token.normalized}
        self._finders = _finders(each for each in spellings if len(each) > 1)

    def marked(self, messages: Sequence[Message], tools: list[Any] | None) -> Marked:
        """Messages and tools with each spelling marked; assistants' messages and ids of calls keep their tokens."""
        found: list[Message] = []
        for message in messages:
            kept = message.keys() if message["role"] == "assistant" else {"tool_call_id"}
            found.append(form := {})
            for key, each in message.items():
                text = _with_own if key in kept else self._with_marks
                form[key] = text(each) if type(each) is str else _mapped(each, text, text)
        told = _mapped(tools, self._with_marks, self._as_tag)
        counts = [0 if form == said else str(form).count(_INSIDE) for form, said in zip(found, messages, strict=True)]
        return Marked(found, told, counts, 0 if told == tools else str(told).count(_INSIDE))

    def _with_marks(self, text: str) -> str:
        text = _with_own(text) if MARK in text else text
        for first, finder in self._finders:
            if first in text:
                text = finder.sub(lambda found: found[0] + _INSIDE, text)
        return text

    def _as_tag(self, key: str) -> str:
        """A key that spells none in `<key>` and `</key>` either, which some formats write."""
        text, tags = self._with_marks(key), f"<{key}></{key}>"
        is_safe = key in _READ or self._with_marks(tags) == f"<{text}></{text}>"
        return text if is_safe else f"{_INSIDE}{text}{_INSIDE}"

    def ids(self, text: str) -> array[int]:
        """Token ids of what a format wrote of marked texts."""
        [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return array("i", [self._ids.get(each, each) for each in encoding.ids] if self._ids else encoding.ids)


def as_tokens(messages: Sequence[Message], tools: list[Any] | None) -> Marked:
    """Messages and tools without marks: what they spell are tokens."""
    return Marked(*(_mapped(each, _with_own, _with_own) for each in (list(messages), tools)))


def _with_own(text: str) -> str:
    return text.replace(MARK, _OWN)


def _mapped(value: Any, text: Callable[[str], str], word: Callable[[str], str], *, names: bool = False) -> Any:
    """JSON with other texts; `word` is for the keys of objects, but for those of a schema that are `names`."""
    if isinstance(value, str):
        return text(value)
    if isinstance(value, dict):
        key = text if names else word
        return {key(k): _mapped(each, text, word, names=k in _NAMES and not names) for k, each in value.items()}
    if isinstance(value, list):
        return [_mapped(each, text, word) for each in value]
    return value


def _unmarking(tokenizer: Tokenizer, added: Iterable[AddedToken]) -> Tokenizer:
    """The same model with the same added tokens, which are looked for before marks are taken out."""
    made = Tokenizer(tokenizer.model)
    own = [] if tokenizer.normalizer is None else [tokenizer.normalizer]
    made.normalizer = Normalizers([Replace(_INSIDE, ""), Replace(_OWN, MARK), *own])
    made.pre_tokenizer = tokenizer.pre_tokenizer
    made.add_tokens([AddedToken(**{**token.__getstate__(), "normalized": False}) for token in added])
    return made


def _controls(token: AddedToken) -> bool:
    content = token.content.strip(_BLANK)
    return bool(content) and (token.special or not all(part.isalnum() for part in content.split()))


def _finders(spellings: Iterable[str]) -> list[tuple[str, re.Pattern[str]]]:
    """First characters of spellings, each with a pattern that finds it where one of them begins.

    `re` looks for one literal character many times as fast as for one of several.
    """
    grouped = _by_first_character(spellings)
    return [(first, re.compile(f"{re.escape(first)}(?={_one_of(rests)})")) for first, rests in grouped.items()]


def _one_of(spellings: Sequence[str]) -> str:
    """A pattern of any of these, branching character by character: some models have thousands that begin alike."""
    if "" in spellings:
        return ""
    branches = [re.escape(first) + _one_of(rests) for first, rests in _by_first_character(spellings).items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _by_first_character(spellings: Iterable[str]) -> dict[str, list[str]]:
    return {first: [each[1:] for each in found] for first, found in groupby(sorted(spellings), itemgetter(0))}
