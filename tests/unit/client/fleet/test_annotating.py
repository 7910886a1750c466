"""What training made of rows is split by turn, exactly; what doesn't fit them is an error that says why."""

import json
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load
from tests.unit.client.fleet.rows import BRANCHED, row, said, trajectory

from rolloutfleet.fleet import BadArgument
from rolloutfleet.fleet.annotating import bodies
from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.tensors import RemoteTensor, read_metadata
from rolloutfleet.wire import ANNOTATIONS_BYTES

NAN = float("nan")


def test_each_turn_gets_the_numbers_of_its_own_tokens() -> None:
    whole = [np.array([9, 1, 2, 9, 3.0]), np.array([9, 9, 9, 4, 5, 6.0])]
    trained = [[1, 2, 3], [4, 5, 6]]
    expected = {"a/x": [1.0, 2.0], "b/x": [3.0], "c/x": [4.0, 5.0, 6.0]}
    for values in (whole, trained, tuple(whole), [whole[0], trained[1]]):
        assert said(BRANCHED, x=values) == expected
    assert said(BRANCHED, x=0.5) == {"a/x": [0.5, 0.5], "b/x": [0.5], "c/x": [0.5, 0.5, 0.5]}
    assert said(BRANCHED, x=[1.0, [4, 5, 6]]) == {"a/x": [1.0, 1.0], "b/x": [1.0], "c/x": [4.0, 5.0, 6.0]}
    assert said(BRANCHED, index=1, x=trained[1]) == {"c/x": [4.0, 5.0, 6.0]}
    one = trajectory(row(-1, 0, 0))
    assert said(one, x=[0.5]) == said(one, x=0.5) == {"a/x": [0.5, 0.5]}, "a list has an entry a row"
    assert said(one, x=[1, 2]) == said(one, x=[[1, 2]]) == said(one, x=np.array([9, 1, 2])) == {"a/x": [1.0, 2.0]}


def test_nan_says_nothing_and_is_passed_on() -> None:
    found = said(trajectory(row(0, 0)), x=[NAN, 1.0])
    assert np.isnan(found["a/x"][0]) and found["a/x"][1] == 1.0


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"x": [[1, 2]]}, "x: has 1 entries; the trajectory has 2 rows"),
        (
            {"x": [[1, 2], [4, 5, 6]]},
            r"x: has the shape \[2\] for row 0, which has 5 tokens, 3 of them with a loss_mask",
        ),
        ({"x": [[1, 2, 3], [4, 5, 6, 7]]}, r"x: has the shape \[4\] for row 1, which has 6 tokens"),
        ({"x": [[[1, 2, 3]], [4, 5, 6]]}, r"x: has the shape \[1, 3\] for row 0"),
        ({"x": [[1, 2, "c"], [4, 5, 6]]}, "x: is list; it takes an array of numbers"),
        ({"x": {"a": 1}}, "x: is dict; it takes an array of numbers"),
        ({"x": [1.0, [4, 5, float("inf")]]}, "x: has an infinity for row 1"),
        ({"a b": 1.0}, "a b: is not a valid name"),
        ({"x": 1.0, "index": 2}, "row: is 2; the trajectory has 2 rows"),
        ({"notes": {"a": 1}}, "notes: has int for a turn"),
    ],
)
def test_what_does_not_fit_is_named(given: dict[str, Any], text: str) -> None:
    with pytest.raises(BadArgument, match=text):
        said(BRANCHED, **given)


def test_an_export_of_references_says_what_is_missing() -> None:
    reference = RemoteTensor("t0-x", "http://127.0.0.1", (3,), "uint8")
    away = trajectory(Row((), None, {"loss_mask": reference, "turn_ids": reference}))
    with pytest.raises(BadArgument, match="was exported as shards"):
        said(away, x=1.0)


def test_nothing_to_say_is_no_call() -> None:
    assert list(bodies(BRANCHED, {}, row=None, notes={})) == []


def test_what_is_too_much_for_one_call_goes_in_several() -> None:
    long = trajectory(row(*[0] * 1_500_000))
    numbers = np.arange(1_500_000, dtype=np.float32)
    notes = {f"turn-{at}": '"' * 4096 for at in range(200)}
    made = list(bodies(long, dict.fromkeys("vwxyz", numbers), row=None, notes=notes))
    assert len(made) > 3 and all(len(body) <= ANNOTATIONS_BYTES for body in made)
    assert all(int.from_bytes(body[:8], "little") <= 1 << 20 for body in made)
    found = [name for body in made for name in load(body)]
    assert sorted(found) == [f"a/{name}" for name in "vwxyz"]
    told: dict[str, str] = {}
    for body in made:
        if b"__metadata__" in body[:100]:
            told |= json.loads(read_metadata(body)["notes"])
    assert told == notes
