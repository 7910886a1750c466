"""How long the event loop is held up while long prompts are made (promise 8)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from itertools import count
from typing import Any

import pytest
from tests.chat_formats import helped_from

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.domain.messages import NO_ARGS
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.tokenizing import LONG_CHARACTERS_QUICKLY, Tokenizing

LONG = 20_000
AROUND = 100
"""Characters of a message beside its text."""
LONG_TEXT = "It was warm in Oslo. " * (LONG // 20)


@pytest.fixture
async def tokenizing(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Tokenizing]:
    helped_from(LONG, monkeypatch)
    source = ModelSource(str(model_path()))
    made = Tokenizing(source.load(), source)
    yield made
    await made.close()


@pytest.fixture
async def as_in_a_proxy() -> AsyncIterator[Tokenizing]:
    """With the limits that a proxy has."""
    source = ModelSource(str(model_path()))
    made = Tokenizing(source.load(), source)
    if not made.chat_format.vocabulary.encodes_quickly():
        pytest.skip("fastokens is not installed")
    yield made
    await made.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def longest_hold(work: asyncio.Task[Any], do: Callable[[], object] = lambda: None) -> float:
    """The longest that the loop was held up, in seconds, while it also does something, until the work is done.

    Counted is the work of all threads of this process, as any may hold the interpreter. How busy the machine is doesn't
    count.
    """
    longest, before = 0.0, time.process_time()
    while not work.done():
        await asyncio.sleep(0)
        do()
        now = time.process_time()
        longest, before = max(longest, now - before), now
    return longest


async def test_the_loop_goes_on_while_a_long_render_is_made(tokenizing: Tokenizing) -> None:
    await tokenizing.prompt([user(LONG_TEXT)], NO_ARGS, [])
    work = asyncio.create_task(tokenizing.prompt([user("It was cold. " * 100_000)], NO_ARGS, []))
    assert await longest_hold(work) < 0.15
    assert len(work.result().ids) > 300_000


@pytest.mark.parametrize("text", ["It was cold. ", "\u5bd2\u3044", "  "], ids=["English", "Japanese", "spaces"])
async def test_the_loop_goes_on_while_a_long_text_is_encoded_in_a_thread(as_in_a_proxy: Tokenizing, text: str) -> None:
    """Also where it encodes something itself meanwhile, which waits for no long text."""
    await as_in_a_proxy.prompt([user(text * 10_000)], NO_ARGS, [])
    long = text * ((LONG_CHARACTERS_QUICKLY - AROUND) // len(text))
    numbers = count()

    def encode() -> None:
        as_in_a_proxy.chat_format.vocabulary.encode(f"It is {next(numbers)}.", add_special_tokens=False)

    assert await longest_hold(asyncio.create_task(as_in_a_proxy.prompt([user(long)], NO_ARGS, [])), encode) < 0.25
    assert as_in_a_proxy._helper.pid is None
