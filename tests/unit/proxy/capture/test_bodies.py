"""What bodies hold in memory: their bytes, and their JSON values."""

import json
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import pytest
from starlette.types import Message

from rolloutfleet_proxy.capture import bodies
from rolloutfleet_proxy.capture.bodies import ALWAYS, LARGE_REQUEST, VALUE_BYTES, Body, read_body, values_of
from rolloutfleet_proxy.domain.errors import TooManyInFlight, TooManyValues
from rolloutfleet_proxy.http.in_flight import CALL_BYTES, Held, InFlight

LIMIT = 2 << 20
MOST = LIMIT // VALUE_BYTES
BUDGET = 2 * LIMIT
TEXT = "It was warm in Oslo, and [so on]. " * 10


@pytest.fixture
def large_bodies() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


async def read(content: bytes, held: Held, executor: Executor, *, limit: int = LIMIT) -> Body:
    pieces = [content[:100], content[100:]]

    async def receive() -> Message:
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    return await read_body(receive, {}, held, limit=limit, large_bodies=executor)


def request(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": TEXT}], **fields}).encode()


async def test_few_values_count_nothing_beside_their_text(large_bodies: Executor) -> None:
    held, content = InFlight(BUDGET).hold(), request()
    assert await read(content, held, large_bodies) == Body(content, is_large=False)
    assert held.nbytes == CALL_BYTES + len(content)


async def test_many_values_count_as_what_they_take_in_memory(large_bodies: Executor) -> None:
    held, content = InFlight(BUDGET).hold(), request(x=[[]] * 1_000)
    await read(content, held, large_bodies)
    values = 2_000 + 5
    assert held.nbytes == CALL_BYTES + len(content) + values * VALUE_BYTES


async def test_values_for_which_there_is_no_room_are_refused(large_bodies: Executor) -> None:
    held, content = InFlight(BUDGET).hold(), request(x=[[]] * (MOST // 2 - 10))
    await read(content, held, large_bodies)
    with pytest.raises(TooManyInFlight):
        for _ in range(2):
            await read(content, held, large_bodies)


async def test_body_with_too_many_values_is_refused_with_their_number(large_bodies: Executor) -> None:
    with pytest.raises(TooManyValues, match=f"has {MOST + 1} JSON values .* {MOST} are allowed.* body_limit"):
        await read(b"[" + b"," * MOST, InFlight(BUDGET).hold(), large_bodies)


async def test_some_values_are_taken_however_small_the_limit_is(large_bodies: Executor) -> None:
    content = b"[" + b"," * (ALWAYS - 1)
    assert (await read(content, InFlight(BUDGET).hold(), large_bodies, limit=ALWAYS)).content == content


@pytest.mark.parametrize("separator", [",", "\\,", '",', "[{"])
async def test_text_is_never_too_many_values(separator: str, large_bodies: Executor) -> None:
    held, content = InFlight(BUDGET).hold(), json.dumps([separator * MOST]).encode()
    await read(content, held, large_bodies)
    assert held.nbytes == CALL_BYTES + len(content)


@pytest.mark.parametrize(
    ("content", "is_large"),
    [
        (request(x=[0] * (LARGE_REQUEST // VALUE_BYTES)), True),
        (request(x=[0] * (LARGE_REQUEST // VALUE_BYTES // 2)), False),
        (request(x="x" * LARGE_REQUEST), True),
        (request(x="x" * (LARGE_REQUEST // 2)), False),
    ],
    ids=["many values", "values", "long", "short"],
)
async def test_body_is_large_by_its_bytes_and_by_its_values(
    content: bytes, is_large: bool, large_bodies: Executor
) -> None:
    held = InFlight(BUDGET * 16).hold()
    assert (await read(content, held, large_bodies, limit=LIMIT * 4)).is_large is is_large


@pytest.mark.parametrize("at_once", range(1, 9))
def test_strings_are_told_from_values_wherever_a_body_is_cut(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "_AT_ONCE", at_once)
    text = json.dumps({'a,"': [1, {"b\\": '\\"[,'}, '\\"', "\\\\", [], "{,"], "é[": None})
    assert values_of(text.encode(), most=0) == text.count(", ") + 4 == 10


def test_texts_are_counted_with_the_values_where_both_are_few() -> None:
    assert values_of(json.dumps({"a": "Yes, [" + "x" * 100}).encode(), most=MOST) == 3
