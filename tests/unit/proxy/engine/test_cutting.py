"""Long strings go out of JSON wherever it is cut, and nothing else does."""

import json
import re
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.engine.cutting import Cutter

LONGEST = 12
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')

values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='ab"\\/\n\té€', max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=20,
)


def without_long(value: Any, *, ascii_only: bool) -> Any:
    if isinstance(value, str):
        encoded = json.dumps(value, ensure_ascii=ascii_only).encode()
        return value if len(encoded) - 2 <= LONGEST else ""
    if isinstance(value, list):
        return [without_long(each, ascii_only=ascii_only) for each in value]
    if isinstance(value, dict):
        return {
            without_long(key, ascii_only=ascii_only): without_long(each, ascii_only=ascii_only)
            for key, each in value.items()
        }
    return value


@given(values, st.booleans(), st.lists(st.integers(1, 9), min_size=1, max_size=8))
def test_every_long_string_is_emptied(value: Any, ascii_only: bool, steps: list[int]) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    cutter = Cutter(longest=LONGEST)
    kept, at, turn = b"", 0, 0
    while at < len(text):
        step = steps[turn % len(steps)]
        kept += cutter.feed(text[at : at + step])
        at, turn = at + step, turn + 1
    assert json.loads(kept) == without_long(value, ascii_only=ascii_only)
    assert kept == STRING.sub(lambda found: found[0] if len(found[0]) - 2 <= LONGEST else b'""', text)


def test_what_is_no_string_stays_whatever_its_length() -> None:
    text = b'data: {"ids": [' + b"1," * 1000 + b'1], "text": "' + b"z" * 1000 + b'"}'
    assert Cutter(longest=LONGEST).feed(text) == text.replace(b"z", b"")
