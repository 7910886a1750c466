"""Read the quick way, a reply is the same evidence, or refused for the same reason."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.proxy.engine.test_evidence import EXPECTED, IDS, LOGPROBS, REFUSED, reply

from rolloutfleet_proxy.engine.evidence import AbortedWithError, Evidence, Expected, Refused, check, decode
from rolloutfleet_proxy.engine.plain_reply import plain, read

Outcome = Evidence | tuple[str, str] | tuple[int, str]


def text(body: Any) -> bytes:
    return body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()


def outcome(body: bytes, expected: Expected, *, exactly: bool) -> Outcome:
    try:
        evidence = check(decode(body), expected) if exactly else read(body, expected)
    except Refused as refused:
        return refused.reason, refused.message
    except AbortedWithError as error:
        return error.status, error.message
    return replace(evidence, ids_json=None)


def same(body: bytes, expected: Expected = EXPECTED) -> bool:
    return outcome(body, expected, exactly=False) == outcome(body, expected, exactly=True)


def test_a_plain_reply_is_read_the_quick_way() -> None:
    body = text(reply())
    evidence = plain(body, EXPECTED)
    assert evidence is not None and same(body)
    assert (evidence.output_ids.tolist(), evidence.ids_json) == (IDS, b"[3,4,99]")


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_refused_for_the_same_reason(name: str) -> None:
    body = text(REFUSED[name][0])
    assert plain(body, EXPECTED) is None
    assert same(body)


exact = text(reply())
ROWS = "[[-0.5,3,null],[-1.25,4,null],[-0.0,99,null]]"
ODD: dict[str, str] = {
    "texts": '[[-0.5,3,"a"],[-1.25,4,"null],["],[-0.0,99,"f"]]',
    "flat": "[-0.5,3,null,-1.25,4,null,-0.0,99,null]",
    "one row": "[[-0.5,3,null,-1.25,4,null,-0.0,99,null]]",
    "two and four": "[[-0.5,3],[null,-1.25,4,null],[-0.0,99,null]]",
    "two and four that end with null": "[[-0.5,null],[3,-1.25,4,null],[-0.0,99,null]]",
    "no third": "[[-0.5,3],[-1.25,4],[-0.0,99]]",
    "a fourth": "[[-0.5,3,null,1],[-1.25,4,null,2],[-0.0,99,null,3]]",
    "deeper": "[[[-0.5,3,null],[-1.25,4,null],[-0.0,99,null]]]",
    "deeper at the end": "[[-0.5,3,null],[-1.25,4,null,[-0.0,99,null]]]",
    "one deeper": "[[-0.5,3,null],[[-1.25],4,null],[-0.0,99,null]]",
    "a row in a row": "[[-0.5,3,null ,[-1.25,4,null]],[-0.0,99,null]]",
    "what null becomes": "[[-0.5,3,9e99],[-1.25,4,null],[-0.0,99,null]]",
    "numbers for nulls": "[[-0.5,3,0],[-1.25,4,0],[-0.0,99,0]]",
    "false": "[[-0.5,3,null],[false,4,null],[-0.0,99,null]]",
    "true": "[[-0.5,3,null],[true,4,null],[-0.0,99,null]]",
    "an object": "[[-0.5,3,null],[-1.25,4,null],{}]",
    "spaces": ROWS.replace(",", ", "),
    "nothing": "[]",
    "empty rows": "[[],[],[]]",
    "an id with a point": ROWS.replace(",4,", ",4.0,"),
    "an id as a power": ROWS.replace(",4,", ",4e0,"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_rows_are_left_to_the_exact_way(name: str) -> None:
    body = text(reply()).replace(ROWS.encode(), ODD[name].encode())
    assert body != exact
    assert plain(body, EXPECTED) is None
    assert same(body)


PIECES = (
    'null true false "a" NaN 1e999 -1e999 9e99 9999 {} [ ] ],[ , 0 -0 -1e-7 -9999 1e-3 3.0 3 4 99 2147483648 -1 nul lun'
    " 18446744073709551616"
)
pieces = st.sampled_from(PIECES.split())
places = st.integers(exact.index(b'"output_ids"'), len(exact))


@given(st.lists(st.tuples(places, st.integers(0, 12), pieces), min_size=1, max_size=3))
def test_a_reply_changed_anywhere_is_taken_alike(changes: list[tuple[int, int, str]]) -> None:
    body = exact
    for place, length, piece in changes:
        body = body[:place] + piece.encode() + body[place + length :]
    assert same(body)


tokens = st.lists(
    st.tuples(
        st.one_of(
            st.floats(max_value=0.00390625, allow_nan=False, width=32),
            st.floats(max_value=0.002, allow_nan=False, allow_infinity=False),
            st.sampled_from([0, -1, -9998.9999999999, -9999, -1e39, -1e308]),
        ),
        st.integers(-2, 120),
    ),
    max_size=9,
)


@given(tokens, st.booleans(), st.sampled_from(["1", "default"]))
def test_any_tokens_are_taken_alike(rows: list[tuple[float, int]], abort: bool, version: str) -> None:
    made = reply(
        output_token_logprobs=[[value, token, None] for value, token in rows],
        completion_tokens=len(rows),
        finish_reason={"type": "abort"} if abort else {"type": "stop", "matched": 7},
        weight_version=version,
    ) | {"output_ids": [token for _, token in rows]}
    assert same(text(made))


@pytest.mark.parametrize("written", ["1e2", "1E2", "10e1", "100.0", " 100", "1e02"])
def test_a_number_that_is_an_id_only_by_its_value_is_left_to_the_exact_way(written: str) -> None:
    body = text(reply()).replace(b"[3,4,99]", b"[100,4,99]").replace(b"-0.5,3,null", f"-0.5,{written},null".encode())
    assert written.encode() in body and b"[100," in body
    expected = replace(EXPECTED, vocab_size=None)
    assert plain(body, expected) is None
    assert same(body, expected)


@pytest.mark.parametrize("size", [1, 70_000])
def test_what_was_odd_does_not_stand_in_the_way_of_the_next(size: int) -> None:
    wide = Expected(prompt_tokens=7, max_new_tokens=100_000)
    ids = list(range(size))
    made = reply(output_token_logprobs=[[-0.5, token, None] for token in ids], completion_tokens=size)
    good = text(made | {"output_ids": ids})
    for odd in (*ODD.values(), "[" * 2000, "5", "[[1,2,null]"):
        assert plain(text(reply()).replace(ROWS.encode(), odd.encode()), wide) is None
        break_off = good[: len(good) // 2]
        assert plain(break_off, wide) is None
    evidence = plain(good, wide)
    assert evidence is not None and evidence.output_ids.tolist() == ids


def test_real_numbers_keep_all_their_digits() -> None:
    values = [-0.31237500905990601, -1.1920928244535389e-07, -5.960464477539063e-08, -12.345678329467773, *LOGPROBS]
    ids = list(range(len(values)))
    made = reply(
        output_token_logprobs=[[value, token, None] for value, token in zip(values, ids, strict=True)],
        completion_tokens=len(values),
    ) | {"output_ids": ids}
    assert plain(text(made), EXPECTED) is not None
    assert same(text(made))
