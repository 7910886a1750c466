"""Dumps as files: what is written comes back, piece by piece, and nothing that was changed passes for whole."""

import hashlib
import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.client.dumps.samples import NAME, SESSION, head, opened, sample, sample_turns, tensors, turn

from rolloutfleet.dumps import reading
from rolloutfleet.dumps.checks import verify
from rolloutfleet.dumps.files import DumpName, dump_names, parse_dump_name
from rolloutfleet.dumps.form import (
    Damaged,
    DumpedShard,
    DumpedTurn,
    IncomingShard,
    StreamedShard,
    StreamedTensor,
    encode,
)
from rolloutfleet.dumps.reading import decode, digest_of, read, read_shards
from rolloutfleet.dumps.tensors import Tensor

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), JSON, max_size=4)


@given(
    messages=st.lists(OBJECTS, max_size=3),
    output=OBJECTS,
    shards=st.lists(tensors(), max_size=2),
    reward=st.none() | st.floats(allow_nan=False, allow_infinity=False),
    incomplete=st.lists(st.text(max_size=5)),
)
def test_a_dump_comes_back_whole(
    messages: list[Any], output: Any, shards: list[Any], reward: float | None, incomplete: list[str]
) -> None:
    turns = [turn(1, messages=messages, output=output, extras=output, tools=output, reward=reward)]
    kept = [DumpedShard(shard_id=str(place), tensor=tensor) for place, tensor in enumerate(shards)]
    content = b"".join(encode(head(), turns, kept, incomplete=[text for text in incomplete if text.isprintable()]))
    back = decode(content)
    assert (back.head, back.turns, back.shards) == (head(), turns, kept)
    assert repr(back.turns[0].messages) == repr(messages), "the order of keys is part of it"
    assert back.end.digest == digest_of(opened(content))
    assert json.loads(content)["turns"][0]["turn_id"] == "chatcmpl-1"


@given(tensors(), st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_shards_come_in_pieces(monkeypatch: pytest.MonkeyPatch, tensor: Tensor, at_once: int) -> None:
    monkeypatch.setattr(reading, "_AT_ONCE", 200 + at_once)
    shards = [DumpedShard(shard_id=f'"data":"{place}' + "x" * at_once, tensor=tensor) for place in range(3)]
    content = b"".join(encode(head(), sample_turns(), shards, incomplete=["x" * 300]))
    parts = {
        part.shard_id: (part.dtype, part.shape, b"".join(part.pieces))
        for part in read_shards(opened(content))
        if isinstance(part, IncomingShard)
    }
    assert parts == {shard.shard_id: (tensor.dtype, tensor.shape, tensor.data) for shard in shards}
    passed_over = [part.shard_id for part in read_shards(opened(content)) if isinstance(part, IncomingShard)]
    assert passed_over == list(parts)
    assert decode(content).shards == shards and decode(content).end.incomplete == ["x" * 300]
    assert verify(opened(content)) == [f"it is incomplete: shards are missing: {'x' * 300}"]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (b'"data":"AAAA', b'"data":"AAA', "not valid base64"),
        (b'"data":"AAAA', b'"data":"', "45 bytes of a shard, and 48 are needed"),
        (b'"dtype":"float64"', b'"dtype":"float0"', "dtype is"),
        (b'"shape":[2,3]', b'"shape":[-2,3]', "shape is"),
        (b'"data":', b'"date":', "is not a shard"),
        (b'"shard_id"', b'"shard"', "shard_id: is missing"),
    ],
)
def test_what_is_no_shard_is_found(before: bytes, after: bytes, said: str) -> None:
    start, mark, shards = sample().partition(b'],"shards":')
    assert before in shards
    (problem,) = verify(opened(start + mark + shards.replace(before, after, 1)))
    assert said in problem


def test_a_dump_is_written_and_read_a_turn_at_a_time() -> None:
    made: list[int] = []

    def turns() -> Any:
        for each in sample_turns():
            made.append(each.number)
            yield each

    pieces = encode(head(), turns())
    next(pieces)
    assert made == []
    next(pieces)
    assert made == [1]
    file = opened(sample())
    parts = read(file)
    next(parts)
    assert isinstance(next(parts), DumpedTurn)
    assert file.tell() < len(sample()) / 2


@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=5))
def test_a_shard_that_is_streamed_is_written_as_a_whole_one(data: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    other = Tensor(dtype="int8", shape=(), data=b"x")
    whole = [DumpedShard(shard_id="é", tensor=Tensor(dtype="uint8", shape=(len(data),), data=data))]
    streamed = [StreamedShard("é", StreamedTensor("uint8", (len(data),), pieces))]
    behind = [DumpedShard(shard_id="other", tensor=other)]
    expected = b"".join(encode(head(), sample_turns(), [*whole, *behind]))
    assert b"".join(encode(head(), sample_turns(), [*streamed, *behind])) == expected


def test_a_whole_dump_has_nothing_wrong() -> None:
    assert verify(opened(sample()), name=NAME) == []


def test_every_flipped_bit_is_found() -> None:
    content = sample()
    chosen = random.Random(0).sample(range(len(content)), 400)
    for at in [*chosen, *range(len(content) - 100, len(content))]:
        for bit in (0, 5):
            broken = bytearray(content)
            broken[at] ^= 1 << bit
            assert verify(opened(bytes(broken)), name=NAME), f"byte {at}, bit {bit}"


def test_every_cut_is_found() -> None:
    content = sample()
    for end in range(0, len(content), 7):
        assert verify(opened(content[:end]), name=NAME), end
    assert verify(opened(content + b"\n"), name=NAME) == ["something follows its end, line 7"]


def rewritten(change: Any) -> bytes:
    """A dump whose writer was wrong, rather than one that was changed later: its digest is right."""
    dump = decode(sample())
    turns = dump.turns
    change(turns)
    return b"".join(encode(dump.head, turns))


def changed(place: int, **values: Any) -> Any:
    def change(turns: list[DumpedTurn]) -> None:
        turns[place] = turns[place].model_copy(update=values)

    return change


def taken(place: int) -> Any:
    return lambda turns: turns.pop(place)


def longer(place: int, name: str) -> Any:
    return changed(place, **{name: getattr(turn(9, sampled=4), name)})


def annotated(name: str, numbers: list[float]) -> Any:
    return changed(1, annotations={name: Tensor.of(np.array(numbers, np.float32))})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (longer(1, "output_ids"), "lengths differ: 4 output_ids, 3 logprobs, 3 versions"),
        (longer(1, "logprobs"), "lengths differ"),
        (longer(1, "versions"), "lengths differ"),
        (changed(1, logprobs=turn(9).versions), "logprobs has the shape [3] of int32"),
        (changed(1, prompt_tokens=8), "its prompt has 8 tokens, and 5 tokens of turn 1 and 2 new ones make 7"),
        (changed(0, prompt_tokens=8), "no parent and 2 new ones make 2"),
        (taken(0), "its parent, turn 1, is not in the dump before it"),
        (changed(2, number=3), "its number is not above 3"),
        (changed(1, trajectory=1), "it is of trajectory 1, not of 2"),
        (changed(1, discarded=True), "it was discarded"),
        (changed(2, number=21), "the session has 20 turns, and one here has the number 21"),
        (lambda turns: turns.clear(), "no turn in it is of its trajectory"),
        (annotated("x", [0.5, 0.5]), "annotation 'x' is not one float32 for each output token"),
        (annotated("x", [0.5, 0.5, np.inf]), "annotation 'x' has an infinity"),
        (annotated("a/b", [0.5, 0.5, np.nan]), "'a/b' is not a valid name of an annotation"),
        (changed(1, annotations={str(at): turn(9).logprobs for at in range(17)}), "it has 17 annotations"),
        (changed(1, note="é" * 2049), "its note has more than 4096 bytes"),
    ],
)
def test_what_a_writer_did_wrong_is_found(change: Any, said: str) -> None:
    problems = verify(opened(rewritten(change)), name=NAME)
    assert any(said in problem for problem in problems), problems


def test_what_a_trainer_said_comes_back_and_may_be_missing_as_in_older_dumps() -> None:
    numbers = Tensor.of(np.array([0.5, np.nan, 0.5], np.float32))
    content = rewritten(changed(1, annotations={"x": numbers}, note="ä"))
    assert verify(opened(content), name=NAME) == []
    own = decode(content).turns[1]
    assert own.annotations["x"].data == numbers.data and own.note == "ä"
    before, mark, _ = sample().partition(b',"digest":"sha256:')
    older = before.replace(b',"annotations":{},"note":null', b"")
    assert older.count(b'"turn_id"') == 3 and b"annotations" not in older
    digest = hashlib.sha256(older).hexdigest().encode()
    assert decode(older + mark + digest + b'"}\n').turns == decode(sample()).turns


def test_log_probabilities_that_are_not_finite_are_found() -> None:
    broken = Tensor.of(np.array([-0.1, np.nan, -0.1], np.float32))
    assert verify(opened(rewritten(changed(1, logprobs=broken)))) == [
        "turn 3 (chatcmpl-3): a log-probability is not finite"
    ]


def test_names_must_agree() -> None:
    other = str(DumpName(SESSION, 1))
    assert verify(opened(sample()), name=other) == [f"by what it holds its name is {NAME}, not {other}"]
    session = head().session.model_copy(update={"session_id": "../../etc/passwd"})
    assert any(
        "is not a valid session" in said
        for said in verify(opened(b"".join(encode(head(session=session), sample_turns()))))
    )


def test_missing_shards_are_said() -> None:
    content = b"".join(encode(head(), sample_turns(), incomplete=["shard-7"]))
    assert verify(opened(content)) == ["it is incomplete: shards are missing: shard-7"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it breaks off in line 1"),
        (b"{}\n", "its first line is not that of a dump"),
        (b'{"format":"other","turns":[\n', "it is not a dump of RolloutFleet"),
        (b'{"format":"rolloutfleet-dump","format_version":2,"turns":[\n', "its format_version is 2"),
        (b'{"format":"rolloutfleet-dump","format_version":1,"turns":[\n', "line 1, reason: is missing"),
    ],
)
def test_what_is_no_dump_is_said(content: bytes, said: str) -> None:
    with pytest.raises(Damaged, match="^" + said.replace(".", r"\.")):
        decode(content)


def test_names() -> None:
    assert dump_names(SESSION, trajectories=[1, 12], active=True) == [
        f"{SESSION}-trajectory-1.json",
        f"{SESSION}-trajectory-12.json",
        f"{SESSION}-active.json",
    ]
    for name in dump_names(SESSION, trajectories=[1, 12], active=True):
        assert str(parse_dump_name(name)) == name
    active, second = parse_dump_name(str(DumpName(SESSION, None))), parse_dump_name(NAME)
    assert active is not None and second is not None
    assert (active.session_id, active.number, second.number) == (SESSION, None, 2)


@pytest.mark.parametrize(
    "name",
    [
        "",
        f"../{NAME}",
        f"{NAME}\n",
        f"{NAME}.imported",
        NAME.replace("-2", "-0"),
        NAME.replace("-2", "-٢"),
        NAME.upper(),
        f"a{NAME}",
        NAME.replace("s3", "s03"),
        "s3-0123456789ab-active.json",
    ],
)
def test_other_names_are_none(name: str) -> None:
    assert parse_dump_name(name) is None
