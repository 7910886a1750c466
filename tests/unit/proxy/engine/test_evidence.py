"""Promise 2: what an engine's reply must be before a turn is made of it."""

import json
import math
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.engine.evidence import (
    AbortedWithError,
    Evidence,
    Expected,
    Reason,
    Refused,
    Span,
    check,
    decode,
    join,
    numeric_version,
    with_versions,
)

EXPECTED = Expected(prompt_tokens=7, max_new_tokens=8, vocab_size=100)
LOGPROBS = [-0.5, -1.25, -0.0]
IDS = [3, 4, 99]


def reply(**meta: Any) -> dict[str, Any]:
    """A good reply of three tokens, with fields of `meta_info` set or, by `...`, left out."""
    good = {
        "id": "r1",
        "finish_reason": {"type": "stop", "matched": 99},
        "prompt_tokens": 7,
        "completion_tokens": 3,
        "cached_tokens": 2,
        "output_token_logprobs": [[lp, id, None] for lp, id in zip(LOGPROBS, IDS, strict=True)],
        "weight_version": "default",
    }
    info = {key: value for key, value in (good | meta).items() if value is not ...}
    return {"text": "abc", "output_ids": IDS, "meta_info": info}


def checked(body: Any, expected: Expected = EXPECTED) -> Evidence:
    return check(decode(body if isinstance(body, bytes) else json.dumps(body).encode()), expected)


def logprob(value: Any) -> dict[str, Any]:
    return reply(output_token_logprobs=[[-0.5, 3, None], [value, 4, None], [-0.1, 99, None]])


ROWS = "[[-0.5,3,null],[-1.25,4,null],[-0.0,99,null]]"


def rows(written: str) -> bytes:
    """The good reply with its rows of log-probabilities written like this."""
    body = json.dumps(reply(), separators=(",", ":"))
    assert ROWS in body
    return body.replace(ROWS, written).encode()


def test_a_good_reply_is_taken_as_it_is() -> None:
    evidence = checked(reply())
    assert evidence.output_ids == array("i", IDS)
    assert evidence.logprobs == array("f", LOGPROBS)
    assert (evidence.finish_reason, evidence.matched) == ("stop", 99)
    assert (evidence.prompt_tokens, evidence.cached_tokens) == (7, 2)
    assert evidence.spans is None


REFUSED: dict[str, tuple[Any, str]] = {
    "no bytes": (b"", Reason.MALFORMED),
    "cut JSON": (json.dumps(reply()).encode()[:-9], Reason.MALFORMED),
    "not UTF-8": (b'{"output_ids": \xff', Reason.MALFORMED),
    "not an object": (b"[]", Reason.WRONG_TYPE),
    "deep nesting": (b'{"meta_info": {"finish_reason": ' + b"[" * 100_000, Reason.MALFORMED),
    "no output_ids": ({"meta_info": reply()["meta_info"]}, Reason.MISSING_FIELD),
    "no meta_info": ({"output_ids": IDS}, Reason.MISSING_FIELD),
    "no log-probabilities": (reply(output_token_logprobs=...), Reason.MISSING_FIELD),
    "no completion_tokens": (reply(completion_tokens=...), Reason.MISSING_FIELD),
    "no prompt_tokens": (reply(prompt_tokens=...), Reason.MISSING_FIELD),
    "no finish reason": (reply(finish_reason=...), Reason.MISSING_FIELD),
    "log-probabilities null": (reply(output_token_logprobs=None), Reason.WRONG_TYPE),
    "completion_tokens a bool": (reply(completion_tokens=True), Reason.WRONG_TYPE),
    "an id a string": (reply() | {"output_ids": [3, "4", 99]}, Reason.WRONG_TYPE),
    "an id a bool": (reply() | {"output_ids": [3, True, 99]}, Reason.WRONG_TYPE),
    "an id a fraction": (reply() | {"output_ids": [3, 4.5, 99]}, Reason.WRONG_TYPE),
    "one id too few": (reply() | {"output_ids": [3, 4]}, Reason.LENGTH_MISMATCH),
    "one log-probability too few": (
        reply(output_token_logprobs=[[-0.5, 3, None], [-0.5, 4, None]]),
        Reason.LENGTH_MISMATCH,
    ),
    "completion_tokens less": (reply(completion_tokens=2), Reason.LENGTH_MISMATCH),
    "completion_tokens more": (reply(completion_tokens=4), Reason.LENGTH_MISMATCH),
    "other ids": (
        reply(output_token_logprobs=[[-0.5, 3, None], [-0.5, 5, None], [-0.5, 99, None]]),
        Reason.TOKEN_MISMATCH,
    ),
    "a shorter prompt": (reply(prompt_tokens=6), Reason.PROMPT_MISMATCH),
    "a longer prompt": (reply(prompt_tokens=8), Reason.PROMPT_MISMATCH),
    "NaN": (logprob(float("nan")), Reason.NAN),
    "infinity": (logprob(float("inf")), Reason.INFINITE),
    "minus infinity": (logprob(float("-inf")), Reason.INFINITE),
    "infinite as float64": (json.dumps(logprob(-7777)).replace("-7777", "-1e999").encode(), Reason.INFINITE),
    "infinite as float32": (logprob(-1e39), Reason.INFINITE),
    "null": (logprob(None), Reason.LOGPROB_MISSING),
    "no rows": (rows("[]"), Reason.LENGTH_MISMATCH),
    "empty rows": (rows("[[],[],[]]"), Reason.WRONG_TYPE),
    "rows flat": (rows("[-0.5,3,null,-1.25,4,null,-0.0,99,null]"), Reason.WRONG_TYPE),
    "one row": (rows("[[-0.5,3,null,-1.25,4,null,-0.0,99,null]]"), Reason.LENGTH_MISMATCH),
    "rows of two and four": (rows("[[-0.5,3],[null,-1.25,4,null],[-0.0,99,null]]"), Reason.LOGPROB_MISSING),
    "a row without its id": (rows("[[-0.5,null],[3,-1.25,4,null],[-0.0,99,null]]"), Reason.WRONG_TYPE),
    "rows too deep": (rows("[[[-0.5,3,null],[-1.25,4,null],[-0.0,99,null]]]"), Reason.WRONG_TYPE),
    "one row too deep": (rows("[[-0.5,3,null],[[-1.25],4,null],[-0.0,99,null]]"), Reason.WRONG_TYPE),
    "a row in a row": (rows("[[-0.5,3,null ,[-1.25,4,null]],[-0.0,99,null]]"), Reason.LENGTH_MISMATCH),
    "a row in the last": (rows("[[-0.5,3,null],[-1.25,4,null,[-0.0,99,null]]]"), Reason.LENGTH_MISMATCH),
    "a row an object": (rows("[[-0.5,3,null],[-1.25,4,null],{}]"), Reason.WRONG_TYPE),
    "an id with a point": (rows(ROWS.replace(",4,", ",4.0,")), Reason.WRONG_TYPE),
    "an id as a power": (rows(ROWS.replace(",4,", ",4e0,")), Reason.WRONG_TYPE),
    "a bool": (logprob(True), Reason.WRONG_TYPE),
    "a string": (logprob("-0.5"), Reason.WRONG_TYPE),
    "the sentinel": (logprob(-9999.0), Reason.SENTINEL),
    "the least float32": (logprob(-3.4028234663852886e38), Reason.SENTINEL),
    "above 0": (logprob(0.25), Reason.POSITIVE),
    "finish reason null": (reply(finish_reason=None), Reason.FINISH_REASON),
    "finish reason a string": (reply(finish_reason="stop"), Reason.FINISH_REASON),
    "finish reason unknown": (reply(finish_reason={"type": "tired"}), Reason.FINISH_REASON),
    "finish reason without type": (reply(finish_reason={}), Reason.FINISH_REASON),
    "spans start late": (
        reply(weight_versions=[{"version": "1", "start": 1, "end": 3}]),
        Reason.VERSION_SPANS,
    ),
    "spans end early": (reply(weight_versions=[{"version": "1", "start": 0, "end": 2}]), Reason.VERSION_SPANS),
    "spans with a gap": (
        reply(
            weight_versions=[
                {"version": "1", "start": 0, "end": 1},
                {"version": "2", "start": 2, "end": 3},
            ]
        ),
        Reason.VERSION_SPANS,
    ),
    "spans backwards": (
        reply(
            weight_versions=[
                {"version": "1", "start": 0, "end": 4},
                {"version": "2", "start": 4, "end": 3},
            ]
        ),
        Reason.VERSION_SPANS,
    ),
    "spans no list": (reply(weight_versions="1"), Reason.VERSION_SPANS),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    body, reason = REFUSED[name]
    with pytest.raises(Refused) as caught:
        checked(body)
    assert caught.value.reason == reason
    assert caught.value.reason in vars(Reason).values()
    assert caught.value.message


@pytest.mark.parametrize(
    "written",
    [
        '[[-0.5,3,"a"],[-1.25,4,"null],["],[-0.0,99,"f"]]',
        "[[-0.5,3],[-1.25,4],[-0.0,99]]",
        "[[-0.5,3,null,1],[-1.25,4,null,2],[-0.0,99,null,3]]",
        "[[-0.5,3,0],[-1.25,4,9e99],[-0.0,99,null]]",
        ROWS.replace(",", ", "),
    ],
)
def test_what_follows_a_rows_id_says_nothing(written: str) -> None:
    assert checked(rows(written)) == checked(reply())


def test_real_numbers_keep_all_their_digits() -> None:
    values = [-0.31237500905990601, -1.1920928244535389e-07, -5.960464477539063e-08, -12.345678329467773]
    ids = list(range(len(values)))
    made = reply(
        output_token_logprobs=[[value, token, None] for value, token in zip(values, ids, strict=True)],
        completion_tokens=len(values),
    ) | {"output_ids": ids}
    assert checked(made).logprobs.tolist() == values


def test_ids_outside_the_vocabulary_are_refused() -> None:
    for id in (-1, 100, 2**31, 2**70):
        body = {
            "output_ids": [id],
            "meta_info": reply(completion_tokens=1, output_token_logprobs=[[-0.5, id, None]])["meta_info"],
        }
        with pytest.raises(Refused) as caught:
            checked(body)
        assert caught.value.reason in (Reason.OUT_OF_VOCABULARY, Reason.WRONG_TYPE)


def test_more_tokens_than_asked_for_are_refused() -> None:
    with pytest.raises(Refused) as caught:
        checked(reply(), Expected(prompt_tokens=7, max_new_tokens=2))
    assert caught.value.reason == Reason.TOO_MANY_TOKENS


@given(value=st.floats(width=32) | st.none() | st.booleans() | st.text(max_size=3) | st.integers())
def test_only_a_log_of_a_probability_passes(value: Any) -> None:
    good = type(value) in (int, float) and -9999 < value <= 1e-3
    try:
        evidence = checked(logprob(value))
    except Refused:
        assert not good
    else:
        assert good
        assert evidence.logprobs[1] == array("f", [value])[0]
        assert all(math.isfinite(item) for item in evidence.logprobs)


@given(
    body=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(
                st.sampled_from(["output_ids", "meta_info", "finish_reason", "type", "completion_tokens"]), inner
            )
        ),
    )
)
def test_no_json_breaks_the_check(body: Any) -> None:
    with pytest.raises(Refused):
        checked(body)


def test_every_kind_of_end() -> None:
    ends: list[tuple[dict[str, Any], tuple[str, Any]]] = [
        ({"type": "stop", "matched": "END"}, ("stop", "END")),
        ({"type": "stop", "matched": [4, 99]}, ("stop", 99)),
        ({"type": "stop"}, ("stop", None)),
        ({"type": "length", "length": 3}, ("length", None)),
        ({"type": "abort", "message": "paused"}, ("abort", None)),
        ({"type": "abort", "message": "paused", "status_code": None, "err_type": None}, ("abort", None)),
    ]
    for sent, (finish, matched) in ends:
        evidence = checked(reply(finish_reason=sent))
        assert (evidence.finish_reason, evidence.matched) == (finish, matched)


def test_an_abort_with_an_error_status_is_the_engines_error() -> None:
    body = reply(finish_reason={"type": "abort", "message": "too long", "status_code": 400})
    with pytest.raises(AbortedWithError) as caught:
        checked(body)
    assert (caught.value.status, caught.value.message) == (400, "too long")


def test_a_request_aborted_while_it_waited_needs_no_prompt_tokens() -> None:
    body = {
        "output_ids": [],
        "meta_info": {
            "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
            "completion_tokens": 0,
            "output_token_logprobs": [],
            "weight_version": "3",
            "weight_versions": [{"version": "3", "start": 0, "end": 0}],
        },
    }
    evidence = checked(body)
    assert (evidence.finish_reason, len(evidence.output_ids), evidence.spans) == ("abort", 0, ())


# Versions


def spans_of(**meta: Any) -> tuple[Span, ...] | None:
    return checked(reply(**meta)).spans


def test_versions_by_span_where_numeric() -> None:
    sent = [{"version": "1", "start": 0, "end": 2}, {"version": "2", "start": 2, "end": 3}]
    assert spans_of(weight_versions=sent, weight_version="2") == (Span(1, 0, 2), Span(2, 2, 3))


def test_else_the_one_version_where_numeric() -> None:
    assert spans_of(weight_version="12") == (Span(12, 0, 3),)
    assert spans_of(weight_version=12) == (Span(12, 0, 3),)
    sent = [{"version": "default", "start": 0, "end": 3}]
    assert spans_of(weight_versions=sent, weight_version="4") == (Span(4, 0, 3),)


def test_else_the_proxys_own_by_chunk() -> None:
    evidence = checked(reply())
    filled = with_versions(evidence, [Span(5, 0, 1), Span(5, 1, 2), Span(6, 2, 3)])
    assert filled.spans == (Span(5, 0, 2), Span(6, 2, 3))
    assert not filled.version_differs


def test_a_difference_to_the_proxys_own_is_noted() -> None:
    evidence = checked(reply(weight_version="4"))
    assert not with_versions(evidence, [Span(4, 0, 3)]).version_differs
    differing = with_versions(evidence, [Span(5, 0, 3)])
    assert differing.version_differs
    assert differing.spans == (Span(4, 0, 3),)


@pytest.mark.parametrize("value", ["default", "", "-1", "1.0", "v1", "²", True, 1.0, None, [], 2**31, "2147483648"])
def test_what_is_no_version_number(value: Any) -> None:
    assert numeric_version(value) is None


# Alternatives


def test_alternatives_come_through_where_asked() -> None:
    rows = [[[-0.5, 3, None], [-1.5, 8, None]], [[-0.2, 4, None], [None, 9, None]], [[-0.1, 99, None]]]
    expected = Expected(prompt_tokens=7, max_new_tokens=8, top_logprobs=2)
    evidence = checked(reply(output_top_logprobs=rows), expected)
    assert evidence.top_logprobs == [[(-0.5, 3), (-1.5, 8)], [(-0.2, 4)], [(-0.1, 99)]]
    assert checked(reply(output_top_logprobs=rows)).top_logprobs is None


@pytest.mark.parametrize(
    "rows",
    [..., None, [], [[[-0.5, 3, None]]], [[[-0.5, 3], [-1, 1], [-2, 2]]] * 3, [[["x", 3]]] * 3, [None] * 3],
)
def test_alternatives_that_do_not_fit_are_refused(rows: Any) -> None:
    expected = Expected(prompt_tokens=7, max_new_tokens=8, top_logprobs=2)
    with pytest.raises(Refused) as caught:
        checked(reply(output_top_logprobs=rows), expected)
    assert caught.value.reason == Reason.TOP_LOGPROBS


# Joining


def part(ids: list[int], finish: str, *, spans: Any = None, cached: int = 0) -> Evidence:
    return Evidence(
        output_ids=array("i", ids),
        logprobs=array("f", [-0.5] * len(ids)),
        finish_reason=finish,  # type: ignore[arg-type]
        prompt_tokens=7,
        cached_tokens=cached,
        spans=spans,
    )


def test_rounds_join_in_order() -> None:
    joined = join(
        [
            part([1, 2], "abort", spans=(Span(1, 0, 2),), cached=5),
            part([], "abort", spans=()),
            part([3], "abort", spans=(Span(1, 0, 1),)),
            part([4, 5], "stop", spans=(Span(2, 0, 2),), cached=9),
        ]
    )
    assert joined.output_ids == array("i", [1, 2, 3, 4, 5])
    assert joined.finish_reason == "stop"
    assert joined.spans == (Span(1, 0, 3), Span(2, 3, 5))
    assert (joined.prompt_tokens, joined.cached_tokens) == (7, 5)


@given(lengths=st.lists(st.integers(0, 4), min_size=1, max_size=5), versions=st.lists(st.integers(0, 2), min_size=5))
def test_joined_spans_cover_the_joined_tokens(lengths: list[int], versions: list[int]) -> None:
    parts = [
        part([1] * length, "abort", spans=(Span(version, 0, length),) if length else ())
        for length, version in zip(lengths, versions, strict=False)
    ]
    joined = join(parts)
    assert joined.spans is not None
    by_token = [span.version for span in joined.spans for _ in range(span.start, span.end)]
    expected = [version for length, version in zip(lengths, versions, strict=False) for _ in range(length)]
    assert by_token == expected
