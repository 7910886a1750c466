"""A streamed reply is the same reply as one that is not streamed, however its bytes arrive."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolloutfleet_proxy.engine import reply_stream
from rolloutfleet_proxy.engine.evidence import AbortedWithError, Expected, Reason, Refused, Reply, check, decode
from rolloutfleet_proxy.engine.reply_stream import BigEvent, Chunk, EventSplitter, StreamedReply

IDS = [5, 6, 7, 8, 9, 10]
LOGPROBS = [-0.5, -0.25, -1.0, -2.0, -0.125, -3.0]
END = {"type": "stop", "matched": 10}


def reply(ids: list[int], logprobs: list[float], *, total: int, finish: Any = None, **meta: Any) -> bytes:
    tokens = [[logprob, id, None] for logprob, id in zip(logprobs, ids, strict=True)]
    info = {
        "finish_reason": finish,
        "prompt_tokens": 3,
        "completion_tokens": total,
        "output_token_logprobs": tokens,
        "output_top_logprobs": [[[logprob, id, None]] for logprob, id, _ in tokens],
    }
    return json.dumps({"text": "", "output_ids": ids, "meta_info": info | meta}, separators=(",", ":")).encode()


def repeating(ends: list[int]) -> list[bytes]:
    """Events that have all tokens so far, as SGLang sends by default."""
    return [reply(IDS[:end], LOGPROBS[:end], total=end, finish=END if end == len(IDS) else None) for end in ends]


def incremental(ends: list[int]) -> list[bytes]:
    """Events that have the new tokens only."""
    starts = [0, *ends]
    return [
        reply(IDS[start:end], LOGPROBS[start:end], total=end, finish=END if end == len(IDS) else None)
        for start, end in zip(starts, ends, strict=False)
    ]


def stream(events: list[bytes]) -> bytes:
    return b"".join(b"data: " + event + b"\n\n" for event in [*events, b"[DONE]"])


def feed(splitter: EventSplitter, piece: bytes) -> list[bytes]:
    """Events as bytes, big ones joined."""
    events = splitter.feed(piece)
    return [b"".join(event.pieces) if isinstance(event, BigEvent) else event for event in events]


def read(pieces: list[bytes], *, with_logprobs: bool, big: int) -> tuple[Reply | None, list[Chunk]]:
    splitter = EventSplitter(big=big, max_bytes=10_000)
    streamed = StreamedReply(with_logprobs=with_logprobs)
    chunks = [streamed.add(feed(splitter, piece)) for piece in pieces]
    return streamed.reply, [chunk for chunk in chunks if chunk is not None]


ends = st.lists(st.integers(1, len(IDS)), unique=True).map(lambda some: sorted({*some, len(IDS)}))
cuts = st.lists(st.integers(1, 3000), max_size=12)


@given(ends=ends, came=st.integers(0, len(IDS)), incrementally=st.booleans(), with_logprobs=st.booleans())
def test_the_part_of_a_stream_that_breaks_off_is_what_was_handed_over(
    ends: list[int], came: int, incrementally: bool, with_logprobs: bool
) -> None:
    events = (incremental(ends) if incrementally else repeating(ends))[:-1][:came]
    streamed = StreamedReply(with_logprobs=with_logprobs)
    chunks = [streamed.add([event]) for event in events]
    lost = {"error": {"type": "stream_error", "message": "connection closed"}}

    chunks.append(streamed.add([json.dumps(lost).encode(), b"[DONE]"]))

    handed_over = [id for chunk in chunks if chunk is not None for id in chunk.output_ids]
    assert streamed.broken == "connection closed" and streamed.reply is None
    part = streamed.part()
    if part is None:
        assert not handed_over
        return
    evidence = check(part, Expected(prompt_tokens=3, max_new_tokens=10, top_logprobs=1))
    assert evidence.output_ids.tolist() == handed_over == IDS[: len(handed_over)]
    assert evidence.logprobs.tolist() == LOGPROBS[: len(handed_over)] and evidence.finish_reason == "abort"


def test_tokens_that_come_with_the_end_of_the_connection_are_handed_over() -> None:
    streamed = StreamedReply(with_logprobs=False)
    lost = b'{"error":{"type":"stream_error","message":"closed"}}'
    chunk = streamed.add([*incremental([2, 4]), lost])
    part = streamed.part()
    assert chunk is not None and part is not None and chunk.output_ids == part.output_ids == IDS[:4]


@given(ends=ends, cuts=cuts, incrementally=st.booleans(), with_logprobs=st.booleans(), big=st.integers(1, 3000))
def test_any_cut_of_the_bytes_gives_the_whole_reply(
    ends: list[int], cuts: list[int], incrementally: bool, with_logprobs: bool, big: int
) -> None:
    data = stream(incremental(ends) if incrementally else repeating(ends))
    places = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    pieces = [data[start:end] for start, end in pairwise(places)]

    found, chunks = read(pieces, with_logprobs=with_logprobs, big=big)

    assert found is not None
    expected = Expected(prompt_tokens=3, max_new_tokens=10, top_logprobs=1)
    whole = decode(reply(IDS, LOGPROBS, total=len(IDS), finish=END))
    assert check(found, expected) == check(whole, expected)
    assert [id for chunk in chunks for id in chunk.output_ids] == IDS
    if with_logprobs:
        assert [logprob for chunk in chunks for logprob in chunk.logprobs or []] == LOGPROBS
        assert [row for chunk in chunks for row in chunk.top_logprobs or []] == [
            [pair] for pair in zip(LOGPROBS, IDS, strict=True)
        ]


def test_of_repeating_events_that_came_together_the_last_is_read() -> None:
    events = repeating([1, 2, 3, 4])
    streamed = StreamedReply(with_logprobs=False)
    assert streamed.add(events[:2]) == Chunk([5, 6])
    # An event in between may hold anything: it is not looked at.
    assert streamed.add([b"{}", events[3]]) == Chunk([7, 8])


@pytest.mark.parametrize("tops", [True, False])
def test_of_repeating_events_only_what_is_new_is_read_also_with_logprobs(
    tops: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole: list[bytes] = []

    def counted(event: bytes) -> Reply:
        whole.append(event)
        return decode(event)

    monkeypatch.setattr(reply_stream, "decode", counted)
    ids, logprobs = list(range(200)), [-place / 7 for place in range(200)]
    streamed = StreamedReply(with_logprobs=True)
    chunks = []
    for end in range(1, len(ids) + 1):
        event = reply(ids[:end], logprobs[:end], total=end, finish=END if end == len(ids) else None)
        if not tops:
            event = event.replace(b"output_top_logprobs", b"others")
        chunks.append(streamed.add([event]))
    assert chunks == [
        Chunk([each], [logprob], [[(logprob, each)]] if tops else None)
        for each, logprob in zip(ids, logprobs, strict=True)
    ]
    assert len(whole) == 3  # the first, the one that shows that they repeat, and the last
    assert streamed.reply is not None and streamed.reply.output_ids == ids


def test_comments_are_left_out() -> None:
    assert EventSplitter(big=1000, max_bytes=100).feed(b": still here\n\ndata: x\n\n") == [b" x"]


@pytest.mark.parametrize("cut", range(1, 60))
def test_a_big_event_says_whether_more_follow(cut: int) -> None:
    for event, unfinished in ((repeating([1])[0], True), (repeating([6])[0], False)):
        splitter = EventSplitter(big=50, max_bytes=10_000)
        data = b": comment\n\ndata: " + event + b"\n\ndata: x\n\n"
        place = data.find(b"finish_reason") - 30 + cut
        found = [*splitter.feed(data[:place]), *splitter.feed(data[place:])]
        assert isinstance(found[0], BigEvent)
        assert b"".join(found[0].pieces).strip() == event
        assert found[0].unfinished == unfinished
        assert found[1:] == [b" x"]


def test_an_event_without_end_is_refused() -> None:
    splitter = EventSplitter(big=1000, max_bytes=100)
    with pytest.raises(Refused) as caught:
        for _ in range(20):
            splitter.feed(b"data: xxxxxxxx")
    assert caught.value.reason == Reason.TOO_BIG


REFUSED: dict[str, tuple[list[bytes], str]] = {
    "a token that was sent grows": (
        [*repeating([1, 2]), reply([5, 67], [-1.0] * 2, total=2)],
        Reason.STREAM_ORDER,
    ),
    "tokens that were sent change": (
        [*repeating([1, 2]), reply([5, 5, 7], [-1.0] * 3, total=3)],
        Reason.STREAM_ORDER,
    ),
    "tokens that were sent vanish": ([*repeating([1, 3]), reply([5, 6], [-1.0] * 2, total=2)], Reason.STREAM_ORDER),
    "a gap": ([incremental([2])[0], reply([9], [-1.0], total=4)], Reason.LENGTH_MISMATCH),
    "an event after the last": ([*incremental([6]), *incremental([6])], Reason.STREAM_ORDER),
    "a log-probability too few": (
        [incremental([2])[0], reply([7], [-1.0], total=3, output_token_logprobs=[])],
        Reason.LENGTH_MISMATCH,
    ),
    "no JSON": ([b"{"], Reason.MALFORMED),
    "NaN": ([reply([5], [float("nan")], total=1)], Reason.NAN),
    "no ids": ([b'{"meta_info": {}}'], Reason.MISSING_FIELD),
}


@pytest.mark.parametrize("with_logprobs", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, with_logprobs: bool) -> None:
    events, reason = REFUSED[name]
    streamed = StreamedReply(with_logprobs=with_logprobs)
    with pytest.raises(Refused) as caught:
        for event in events:
            streamed.add([event])
    assert caught.value.reason == reason


def test_a_log_probability_too_few_among_what_is_new_is_refused_where_they_are_read() -> None:
    short = reply(IDS[:3], LOGPROBS[:3], total=3, output_token_logprobs=[[LOGPROBS[0], IDS[0], None]])
    streamed = StreamedReply(with_logprobs=True)
    with pytest.raises(Refused) as caught:
        for event in (*repeating([1, 2]), short):
            streamed.add([event])
    assert caught.value.reason == Reason.LENGTH_MISMATCH


def test_a_request_aborted_while_it_waits_again_repeats_its_last_id() -> None:
    """What `_handle_abort_req` of SGLang 0.5.23 sends with incremental streaming."""
    late = json.dumps(
        {
            "output_ids": [6],
            "meta_info": {
                "finish_reason": {"type": "abort", "message": "Abort in waiting queue"},
                "completion_tokens": 2,
                "output_token_logprobs": [[-0.5, 5, None], [-0.25, 6, None]],
            },
        }
    ).encode()
    streamed = StreamedReply(with_logprobs=True)
    for event in (*incremental([1]), reply([6], [-0.25], total=2), late):
        streamed.add([event])
    assert streamed.reply is not None
    evidence = check(streamed.reply, Expected(prompt_tokens=3, max_new_tokens=10))
    assert (evidence.output_ids.tolist(), evidence.finish_reason) == ([5, 6], "abort")


@pytest.mark.parametrize(
    ("error", "status"),
    [({"message": "too long", "code": 400}, 400), ({"message": "x", "code": "odd"}, 500), ("text", 500)],
)
def test_an_error_event_is_the_engines_error(error: Any, status: int) -> None:
    streamed = StreamedReply(with_logprobs=False)
    with pytest.raises(AbortedWithError) as caught:
        streamed.add([json.dumps({"error": error}).encode(), b"[DONE]"])
    assert caught.value.status == status
    assert caught.value.message
