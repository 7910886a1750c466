"""A plain whole reply as evidence, without a Python object for each number in it. Pure.

Most of what reading a reply costs is its 2,000 numbers: each is an object that is made, looked at once and dropped.
`simdjson` puts the numbers of a JSON array into memory as they are, where numpy looks at all at once. It does so for
arrays of numbers only, so the nulls of `[[logprob, id, null], …]`, which stand for texts that nobody asked for, become
numbers first.

Only what is good is taken here. Whatever is odd, or may be, is left to `evidence.check`, which also knows why something
is refused: both make the same evidence of a good reply.
"""

from __future__ import annotations

from array import array
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt
from simdjson import Array, Parser

from rolloutfleet_proxy.engine.evidence import (
    SENTINEL,
    AbortedWithError,
    Evidence,
    Expected,
    MetaRest,
    Refused,
    check,
    decode,
    of_arrays,
)

_NULLS_AS_NUMBERS = bytes.maketrans(b"nul", b"9e9")
"""Makes 9e99 of null: no token has it as its id, nor as its log-probability."""
_MAX_INT32 = 2**31 - 1
_ODD = (b'"', b"t", b"f", b"{")
"""Strings, true, false, objects."""


_Letters = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.int64]


class _Meta(MetaRest, kw_only=True):
    output_token_logprobs: msgspec.Raw


class _Reply(msgspec.Struct):
    output_ids: msgspec.Raw
    meta_info: _Meta


_USUAL = 1 << 18
_parser = Parser()
"""Kept, since a new one has its memory mapped anew. It refuses to read while something it has read is still held."""
_decode = msgspec.json.Decoder(_Reply).decode


def read(body: bytes, expected: Expected) -> Evidence:
    """`check(decode(body), expected)`: raises Refused and AbortedWithError."""
    return plain(body, expected) or check(decode(body), expected)


def plain(body: bytes, expected: Expected) -> Evidence | None:
    """The evidence of a reply that is plain and good; None for any other."""
    try:
        reply = _decode(body)
        ids_json = bytes(reply.output_ids)
        ids = np.frombuffer(_numbers(ids_json, "i"), np.int64)
        rows = _rows(bytes(reply.meta_info.output_token_logprobs), ids_json)
        if rows is None or not len(ids) or not np.array_equal(rows[:, 1], ids):
            return None
        logprobs = rows[:, 0]
        # Nothing that would change its value, or warn, as it becomes smaller.
        if int(ids.view(np.uint64).max()) > _MAX_INT32 or not (logprobs.min() > SENTINEL and logprobs.max() < 1):
            return None
        return of_arrays(
            reply.meta_info,
            expected,
            output_ids=array("i", ids.astype(np.int32).tobytes()),
            logprobs=array("f", logprobs.astype(np.float32).tobytes()),
            ids_json=ids_json,
        )
    except (ValueError, TypeError, RuntimeError, Refused, AbortedWithError):
        return None


def _rows(logprobs: bytes, ids_json: bytes) -> npt.NDArray[np.float64] | None:
    """`[[logprob, id, null], …]` as rows of three numbers, the last of which says nothing; None for anything else.

    `ids_json` has the same ids as a plain array. Flat, the numbers would not say how they were bracketed, so every
    third comma must have brackets around it, with no bracket left, and every second of three a null behind it.
    """
    if not logprobs.startswith(b"[[") or not logprobs.endswith(b"null]]") or any(odd in logprobs for odd in _ODD):
        return None
    numbers = np.frombuffer(_numbers(logprobs.translate(_NULLS_AS_NUMBERS), "d"), np.float64)
    letters = np.frombuffer(logprobs, np.uint8)
    commas = (letters == ord(",")).nonzero()[0]
    count, rest = divmod(len(numbers), 3)
    if rest or len(commas) != len(numbers) - 1 or np.count_nonzero(letters == ord("[")) != count + 1:
        return None
    before_ids, after_ids, between = commas[0::3], commas[1::3], commas[2::3]
    if not (
        (letters[between - 1] == ord("]")).all()
        and (letters[between + 1] == ord("[")).all()
        and (letters[after_ids + 1] == ord("n")).all()
        and _written_alike(letters, before_ids, after_ids, ids_json)
    ):
        return None
    return numbers.reshape(count, 3)


def _written_alike(letters: _Letters, before: _Places, after: _Places, ids_json: bytes) -> bool:
    """Whether the numbers between two places each are as long as the ids of the same values, and end as they do.

    5.0 and 1e2 are the numbers 5 and 100, and no ids; the first is longer, and the second ends with no 0.
    """
    plain = np.frombuffer(ids_json, np.uint8)
    ends = np.append((plain == ord(",")).nonzero()[0], len(plain) - 1)
    return np.array_equal(after - before, np.diff(ends, prepend=0)) and np.array_equal(
        letters[after - 1], plain[ends - 1]
    )


def _numbers(text: bytes, kind: Literal["d", "i"]) -> memoryview:
    """All numbers of a JSON array, and of the arrays in it, as int64 ("i") or float64 ("d").

    Raises ValueError and TypeError where it holds anything else.
    """
    # What a parser has grown to it keeps, so a text beyond the usual gets one of its own.
    parsed = (_parser if len(text) <= _USUAL else Parser()).parse(text)
    if not isinstance(parsed, Array):
        raise TypeError("no array")
    return memoryview(parsed.as_buffer(of_type=kind))
