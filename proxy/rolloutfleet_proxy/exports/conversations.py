"""Parts of rows that an export includes beside their tensors: messages of the conversation, and the tools declared.

Each turn keeps the messages that its request added, and its output; the first one of a conversation keeps the tools,
which are those of all that extend it, since other tools make another conversation. A row has all of it, so what several
rows share comes several times: one answer holds `INCLUDED_LIMIT` bytes of it and no more.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import msgspec

from rolloutfleet.wire import Included
from rolloutfleet_proxy.store.exports import load_conversation, load_conversation_sizes, load_tools
from rolloutfleet_proxy.store.leases import Member
from rolloutfleet_proxy.store.store import Read

INCLUDED_LIMIT: Final = 64 << 20
"""Bytes of messages and tools, as they are stored, in one answer."""
_AT_ONCE: Final = 1 << 20
"""Bytes of a piece: about a millisecond's work for whoever escapes it."""


class _Declared(msgspec.Struct):
    tools: msgspec.Raw = msgspec.Raw(b"null")


_decode_declared = msgspec.json.Decoder(_Declared).decode


def included_size(read: Read[Any], member: Member, paths: Iterable[Sequence[int]]) -> int:
    """Bytes of what rows include; `paths` holds the numbers of each row's turns. Raises ExportGone."""
    each = [*paths]
    sizes = read(partial(load_conversation_sizes, member=member, numbers={number for row in each for number in row}))
    return sum(sizes[number] for row in each for number in row)


def included_pieces(
    read: Read[Any], member: Member, path: Sequence[int], include: Collection[Included]
) -> Iterator[bytes]:
    """The members of a row's JSON object that hold what it includes, each behind a comma; `path` holds its turns, the
    first one a root. Raises ExportGone."""
    if "messages" in include:
        before = b',"messages":['
        for added, output in read(partial(load_conversation, member=member, numbers=path)):
            # A list without its brackets; empty where a request added nothing.
            for part in filter(None, (added[1:-1], output)):
                yield before
                yield from _cut(part)
                before = b","
        yield b"]"
    if "tools" in include:
        found = read(partial(load_tools, member=member, number=path[0]))
        tools = b"null" if found is None else bytes(_decode_declared(found).tools)
        yield b',"tools":'
        yield from _cut(b"[]" if tools == b"null" else tools)


def _cut(text: bytes) -> Iterator[bytes]:
    """UTF-8 in pieces that are UTF-8."""
    start = 0
    while start < len(text):
        end = start + _AT_ONCE
        while end < len(text) and text[end] & 0xC0 == 0x80:
            end -= 1
        yield text[start:end]
        start = end
