"""A recorded conversation: the requests of a real program, each with what it has otherwise than the one before.

Only form is kept. Sentences, and all texts of more than 60 characters, are written as their length and a number,
`<1234:56789>`, and read as that many characters of the rigs' own texts (`rigs.texts`), the same for the same text.
Prompts and tools' descriptions are their makers' own, and what a session says of its machine stays there.
"""

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from benchmarks.rigs.texts import prose

FOLDER: Final = Path(__file__).parent
LONGEST_NAME: Final = 60
LONGEST_WORDS: Final = 16
"""Characters of a text that is kept as it is, without a space in it and with one."""
KEPT: Final = "arguments"
"""A field whose text is JSON that the model wrote: what is laid down."""

_MARK = re.compile(r"<(\d+):(\d+)>")
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Json = Any


class Later(msgspec.Struct, frozen=True, kw_only=True):
    """A request after the first."""

    same: int
    """How many entries of the conversation are those of the request before."""
    more: list[Json]
    """What follows them."""


class Conversation(msgspec.Struct, frozen=True, kw_only=True):
    dialect: str
    path: str
    """Of the calls, behind the session's own."""
    conversation: str
    """The field of a body that holds it."""
    headers: dict[str, str]
    first: dict[str, Json]
    later: list[Later]

    def bodies(self) -> Iterator[dict[str, Json]]:
        """Each request's, with texts."""
        text = prose()
        body = _with_texts(self.first, text)
        yield body
        for each in self.later:
            entries = [*body[self.conversation][: each.same], *_with_texts(each.more, text)]
            body = {**body, self.conversation: entries}
            yield body


def read(name: str) -> Conversation:
    return msgspec.json.decode((FOLDER / f"{name}.json").read_bytes(), type=Conversation)


def without_texts(value: Json, *, field: str = "") -> Json:
    if isinstance(value, dict):
        return {name: without_texts(each, field=name) for name, each in value.items()}
    if isinstance(value, list):
        return [without_texts(each) for each in value]
    if not isinstance(value, str) or field == KEPT:
        return value
    if len(value) > (LONGEST_WORDS if " " in value else LONGEST_NAME):
        return f"<{len(value)}:{zlib.crc32(value.encode()) % 100_000}>"
    return without_uuids(value)


def without_uuids(text: str) -> str:
    return _UUID.sub("00000000-0000-4000-8000-000000000000", text)


def _with_texts(value: Json, text: str) -> Json:
    if isinstance(value, dict):
        return {name: _with_texts(each, text) for name, each in value.items()}
    if isinstance(value, list):
        return [_with_texts(each, text) for each in value]
    if isinstance(value, str) and (mark := _MARK.fullmatch(value)):
        length, start = int(mark[1]), int(mark[2])
        # No white space at its ends, which chat formats may drop.
        return f"[{text[start : start + length - 2]}]"
    return value
