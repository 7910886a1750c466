"""Tokens over time: when they are made, and by which weights."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_engine.generation import Generation, Pace, Span


def generation(total: int = 10, *, first: float = 1.0, each: float = 0.5) -> Generation:
    return Generation(total=total, pace=Pace(first=first, each=each), started=100.0, version="1")


def test_tokens_come_at_their_times() -> None:
    made = generation()
    assert [made.advance(now) for now in (100.9, 101.0, 101.4, 101.5, 103.0, 200.0)] == [0, 1, 1, 2, 5, 10]
    assert made.time_of(1) == 101.0
    assert made.time_of(10) == 105.5


def test_without_token_latency_all_come_at_once() -> None:
    made = generation(each=0)
    assert [made.advance(now) for now in (100.9, 101.0)] == [0, 10]


def test_a_hold_stops_the_clock() -> None:
    made = generation()
    made.hold(101.5)
    assert made.time_of(3) is None
    assert made.advance(150) == 2
    made.go_on(201.5)
    assert made.advance(201.6) == 2
    assert made.time_of(3) == 202.0


def test_versions_follow_the_tokens() -> None:
    made = generation()
    made.change_version("2", 102.0)
    made.advance(200)
    assert made.spans() == [Span("1", 0, 3), Span("2", 3, 10)]


def test_a_change_before_the_first_token_leaves_one_span() -> None:
    made = generation()
    made.change_version("2", 100.5)
    made.advance(200)
    assert made.spans() == [Span("2", 0, 10)]


def test_nothing_made_is_one_empty_span() -> None:
    assert generation().spans() == [Span("1", 0, 0)]


def test_a_change_after_the_end_counts_for_nothing() -> None:
    made = generation()
    made.end_now(102.0)
    made.change_version("2", 103.0)
    assert made.spans() == [Span("1", 0, 3)]


def test_it_stalls_where_told() -> None:
    made = generation()
    made.stalls_at = 4
    assert made.advance(200) == 4
    assert made.time_of(4) is not None
    assert made.time_of(5) is None


moves = st.lists(st.tuples(st.sampled_from(["advance", "hold", "go_on", "1", "2", "3"]), st.floats(0, 2)), max_size=30)


@given(moves=moves, total=st.integers(0, 20))
def test_spans_cover_each_token_made_once(moves: list[tuple[str, float]], total: int) -> None:
    made, now, last = generation(total), 100.0, 0
    for move, wait in moves:
        now += wait
        if move == "advance":
            made.advance(now)
        elif move == "hold":
            made.hold(now)
        elif move == "go_on":
            made.go_on(now)
        else:
            made.change_version(move, now)
        assert last <= made.made <= total
        last = made.made
        spans = made.spans()
        assert spans[0].start == 0
        assert spans[-1].end == made.made
        for before, after in pairwise(spans):
            assert before.end == after.start
            assert before.version != after.version
        assert all(span.start < span.end for span in spans) or made.made == 0
