"""Promise 7: a cache keeps to its bound, and its entries are about as large as it says."""

import asyncio
import gc
import tracemalloc
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.chat_formats import load
from tests.unit.proxy.stores import SyncStore

from rolloutfleet_engine.model import model_path
from rolloutfleet_proxy.caches import ByteCache
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.engine.request import ids_json
from rolloutfleet_proxy.sessions.paths import Path as IdsPath
from rolloutfleet_proxy.sessions.paths import Paths
from rolloutfleet_proxy.sessions.registry import SessionRegistry
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.tokens.vocabulary import SEEN

ROOMY = 1 << 30
FACTOR = 1.5
"""How far a cache's own figure may be from what Python allocated."""


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 120))))
def test_a_cache_keeps_the_last_used_within_its_bound(puts: list[tuple[int, int]]) -> None:
    cache: ByteCache[int, int] = ByteCache(100)
    kept: dict[int, int] = {}
    for key, size in puts:
        cache.put(key, size, size)
        kept.pop(key, None)
        if size <= 100:
            kept[key] = size
        while sum(kept.values()) > 100:
            del kept[next(iter(kept))]
        assert cache.nbytes == sum(kept.values()) <= 100
        assert len(cache) == len(kept)
    assert {key: cache.get(key) for key in range(10)} == {key: kept.get(key) for key in range(10)}


@contextmanager
def allocated() -> Iterator[Callable[[], int]]:
    """How many bytes Python has allocated since, and still holds."""
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]

    def now() -> int:
        gc.collect()
        return tracemalloc.get_traced_memory()[0] - before

    try:
        yield now
    finally:
        tracemalloc.stop()


def is_honest(said: int, held: int) -> bool:
    return held / FACTOR <= said <= held * FACTOR


@pytest.mark.parametrize(
    ("turns", "asked"),
    [
        (0, {}),
        (0, {"metadata": {"text": "é" * 20_000, **{f"field {n}": n * 1.5 for n in range(1_000)}}}),
        (3, {"metadata": {"seed": 7}, "task_id": "t" * 200}),
        (45, {}),
        (400, {}),
    ],
)
def test_sessions_are_as_large_as_they_say(store: SyncStore, turns: int, asked: dict[str, Any]) -> None:
    names = []
    for each in range(40 if turns < 100 else 4):
        [(row, name)] = store.start(**asked)
        names.append(name)
        parent = None
        for number in range(turns):
            given: dict[str, Any] = (
                {"idempotency_key": f"a key of turn {number:4} of session {each}"} if number % 2 else {}
            )
            if number % 4 == 0:
                given["lineage"] = Lineage(f"agent {number:4} of session {each}", "subagent", f"agent {number - 4:4}")
            parent = store.commit(row, parent=parent, name=f"turn-{each:010}-{number:010}", **given)
    reader = Reader(store.database)

    async def read() -> SessionRegistry:
        sessions = SessionRegistry(reader, cache_bytes=ROOMY)
        for name in names:
            await sessions.named(name)
        return sessions

    asyncio.run(read())
    with allocated() as held:
        sessions = asyncio.run(read())
        taken = held()
    reader.close()
    assert is_honest(sessions.cached_bytes, taken), (sessions.cached_bytes, taken)


@pytest.mark.parametrize("tokens", [10, 1_000, 100_000])
def test_ids_are_as_large_as_they_say(store: SyncStore, tokens: int) -> None:
    reader = Reader(store.database)
    with allocated() as held:
        paths = Paths(reader, cache_bytes=ROOMY)
        for number in range(max(3, 30_000 // tokens)):
            prompt = array("i", range(tokens))
            paths.keep(number + 1000, 1, IdsPath(prompt, array("i", range(tokens // 10)), ids_json(prompt)))
        taken = held()
    reader.close()
    assert is_honest(paths.cached_bytes, taken), (paths.cached_bytes, taken)


@pytest.mark.parametrize("text", ["short {}", "A plain sentence {}. " * 200, "Fünf größere Wörter {} → " * 200])
def test_encoded_texts_are_as_large_as_they_say(text: str) -> None:
    vocabulary = load(str(model_path())).vocabulary
    for number in range(3000):
        vocabulary.encode(text.format(*[number] * 200)[:10] + " ")  # What a tokenizer keeps of words comes once.
    texts = [text.replace("{}", str(number)) for number in range(1000, 1300)]
    for each in texts:
        vocabulary.encoded(each)
    before = vocabulary.cache.nbytes
    with allocated() as held:
        for number in range(1000, 1300):
            vocabulary.encoded(text.replace("{}", str(number)))
        taken = held()
    said = vocabulary.cache.nbytes - before
    assert is_honest(said, taken), (said, taken)


def test_a_text_larger_than_the_bound_is_not_kept_and_pushes_none_out() -> None:
    vocabulary = load(str(model_path()), cache_bytes=20_000).vocabulary
    for _ in range(2):
        vocabulary.encode("A text that is kept.")
    kept = vocabulary.cache.nbytes
    assert kept > 0
    for _ in range(2):
        vocabulary.encode("A long text. " * 10_000)
    assert vocabulary.cache.nbytes == kept


def test_a_text_is_kept_from_its_second_time_on() -> None:
    """Most of what agents say comes once."""
    vocabulary = load(str(model_path())).vocabulary
    for number in range(3 * SEEN):
        vocabulary.encode(f"text {number}")
    before = vocabulary.cache.nbytes
    vocabulary.encode("text 0")
    assert vocabulary.cache.nbytes == before, "it came too long ago"
    ids = vocabulary.encode("text 0")
    assert vocabulary.cache.nbytes > before
    assert vocabulary.encode("text 0") == ids
