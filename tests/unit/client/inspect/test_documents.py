"""What pages are made of: names that are safe in paths, chunks that are the whole again, strips of bounded length."""

import math
from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet.inspect.documents import BUCKETS, TOKENS_A_CHUNK, chunk_document, last_words, strip
from rolloutfleet.inspect.names import digest_name, is_name, is_session_id, safe_name
from rolloutfleet.viewing import TOKEN_LISTS
from rolloutfleet.wire import ShownTokens


@given(st.text())
def test_any_text_has_a_name_that_means_nothing_to_a_path(text: str) -> None:
    name = safe_name(text)
    assert is_name(name) and not set(name) & set("/\\.%:?#&<>\"' \0")
    assert safe_name(name) == name


@given(st.lists(st.text(), unique=True, min_size=2, max_size=4))
def test_other_texts_have_other_names(texts: list[str]) -> None:
    assert len({digest_name(text) for text in texts}) == len(texts)
    assert digest_name(texts[0], texts[1]) != digest_name(texts[0] + texts[1])


def test_a_disk_that_knows_no_capitals_tells_names_apart() -> None:
    assert len({safe_name(text).lower() for text in ("task", "Task", "TASK", "tasK")}) == 4


def test_ids_of_a_fleet_stay_as_they_are() -> None:
    for name in ("turn-5f3a", "s0-0123456789ab-0123456789abcdef", "g0-0123456789ab-0123456789abcdef"):
        assert safe_name(name) == name
    assert is_session_id("s12-0123456789ab-0123456789abcdef")
    for other in ("", "s0", "../s0-0123456789ab-0123456789abcdef", "s0-0123456789ab-0123456789abcdef/turns"):
        assert not is_session_id(other)


@given(st.integers(0, 3000), st.integers(0, 2000))
def test_chunks_joined_are_all_tokens(count: int, start: int) -> None:
    """Those that are there: a part may begin anywhere."""
    ids = list(range(start, start + count))
    tokens = ShownTokens(
        start=start,
        input_ids=ids,
        texts=[str(each) for each in ids],
        logprobs=[-each / 8 for each in ids],
        versions=ids,
        loss_mask=[1] * count,
        annotations={"a": [None if each % 2 else float(each) for each in ids]},
    )
    joined = defaultdict[str, list[object]](list)
    for number in range(math.ceil((start + count) / TOKENS_A_CHUNK)):
        chunk = chunk_document(tokens, number)
        assert len(chunk["input_ids"]) <= TOKENS_A_CHUNK
        assert not chunk["input_ids"] or chunk["start"] == chunk["input_ids"][0]
        for name in TOKEN_LISTS:
            joined[name] += chunk[name]
        joined["a"] += chunk["annotations"]["a"]
    assert {name: joined[name] for name in TOKEN_LISTS} == {name: getattr(tokens, name) for name in TOKEN_LISTS}
    assert joined["a"] == tokens.annotations["a"]


@given(st.lists(st.floats(-100, 0.001), max_size=3000))
def test_a_strip_is_bounded_and_its_mean_is_the_tokens(logprobs: list[float]) -> None:
    made = strip(logprobs)
    assert len(made) == min(BUCKETS, len(logprobs)) and all(0 <= each <= 1 for each in made)
    if 0 < len(logprobs) <= BUCKETS:
        assert made == [round(math.exp(min(0.0, each)), 6) for each in logprobs]


def test_the_last_words_are_text_or_the_calls_that_were_made() -> None:
    def of(**message: object) -> str:
        return last_words({"messages": [{"message": {"role": "assistant", **message}}]}, 10)

    assert of(content="short") == "short" and of(content="x" * 20) == "…" + "x" * 10
    assert of(content="", tool_calls=[{"function": {"name": "look"}}, 7, {"function": None}]) == "→ look"
    assert of(content=[{"type": "text"}], tool_calls="x") == "" and last_words({"messages": []}, 10) == ""
