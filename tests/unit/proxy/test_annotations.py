"""What a body of annotations says is judged by its form before any turn is looked at."""

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from rolloutfleet_proxy.domain.errors import InvalidRequest
from rolloutfleet_proxy.services.annotations import read_annotations

F32 = np.array([1.0, 2.0], np.float32)
RIGHT = save({"turn-a/x": F32})


def noted(notes: Any) -> bytes:
    return save({}, metadata={"notes": notes if isinstance(notes, str) else json.dumps(notes)})


def test_tensors_and_notes_are_read_in_whatever_order_they_come() -> None:
    both = {"turn-b/y": F32, "turn-a/x": -F32, "turn-a/empty": F32[:0]}
    found = read_annotations(save(both, metadata={"notes": json.dumps({"turn-c": "é"}), "format": "pt"}))
    assert {each.tensor: bytes(each.content) for each in found.series} == {
        name: value.tobytes() for name, value in both.items()
    }
    assert found.notes == {"turn-c": "é"} and found.turns == {"turn-a", "turn-b", "turn-c"}


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        (b"", None, "ends within its header"),
        (RIGHT[:20], None, "ends within its header"),
        (RIGHT[:-1], None, "tensors have 8 bytes, and 7 stand"),
        (RIGHT + b"x", None, "tensors have 8 bytes, and 9 stand"),
        ((2**20 + 1).to_bytes(8, "little") + b"{" * 100, None, "at most 1048576"),
        (b"\x02" + bytes(7) + b"[]", None, "not a JSON object"),
        ((100_000).to_bytes(8, "little") + b"[" * 100_000, None, "not a JSON object"),
        (save({"turn-a": F32}), "turn-a", "TURN_ID/SERIES"),
        (save({"/x": F32}), "/x", "TURN_ID/SERIES"),
        (save({"turn-a/": F32}), "turn-a/", "TURN_ID/SERIES"),
        (save({"turn-a/a b": F32}), "turn-a/a b", "TURN_ID/SERIES"),
        (save({"turn-a/é": F32}), None, "TURN_ID/SERIES"),
        (save({"turn-a/" + "x" * 65: F32}), "turn-a/" + "x" * 65, "TURN_ID/SERIES"),
        (save({"t" * 129 + "/x": F32}), "t" * 80, "TURN_ID/SERIES"),
        (save({"turn-a/x": F32.astype(np.float64)}), "turn-a/x", "is float64"),
        (save({"turn-a/x": F32.astype(np.float16)}), "turn-a/x", "is float16"),
        (save({"turn-a/x": F32.reshape(1, 2)}), "turn-a/x", "of shape [1, 2]"),
        (save({"turn-a/x": F32 * math.inf}), "turn-a/x", "an infinity"),
        (noted("{"), "notes", "not JSON"),
        (noted([]), "notes", "not JSON"),
        (noted({"turn-a": 1}), "notes", "not JSON"),
        (noted('{"turn-a": "\\ud800"}'), "notes", "not JSON"),
        (noted("[" * 50_000), "notes", "not JSON"),
        (noted({"": "x"}), "notes", "is not a turn's id"),
        (noted({"turn-a": "é" * 2049}), "notes", "4098 bytes; at most 4096"),
    ],
)
def test_what_is_wrong_is_said_and_named(body: bytes, param: str | None, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        read_annotations(body)
    assert said in refused.value.message and refused.value.param == param
    assert len(refused.value.message) < 500


@pytest.mark.parametrize("metadata", [3, [], {"notes": 3}, {"notes": {"turn-a": "x"}}])
def test_metadata_is_an_object_of_texts(metadata: Any) -> None:
    header = json.dumps({"__metadata__": metadata}).encode()
    with pytest.raises(InvalidRequest, match="object of texts"):
        read_annotations(len(header).to_bytes(8, "little") + header)


@given(st.binary(max_size=40), st.integers(0, len(RIGHT) - 1))
def test_any_bytes_are_read_or_refused(noise: bytes, at: int) -> None:
    for body in (noise, RIGHT[:at] + noise + RIGHT[at + len(noise) :]):
        try:
            read_annotations(body)
        except InvalidRequest as error:
            assert error.message
