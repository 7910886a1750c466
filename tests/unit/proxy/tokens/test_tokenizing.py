"""Prompts off the event loop, long ones out of the process (promise 8)."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from itertools import count
from typing import Any

import pytest
from tests.waiting import PATIENCE

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.domain.events import Text
from rolloutfleet_proxy.domain.messages import NO_ARGS, TemplateArgs
from rolloutfleet_proxy.tokens.deltas import DeltaParser
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat
from rolloutfleet_proxy.tokens.render_process import ModelSource, RenderProcessFailed
from rolloutfleet_proxy.tokens.tokenizing import LONG_CHARACTERS, LONG_CHARACTERS_QUICKLY, Tokenizing

LONG = 20_000


@pytest.fixture
async def tokenizing() -> AsyncIterator[Tokenizing]:
    source = ModelSource(str(model_path()))
    made = Tokenizing(source.load(), source, long_characters=LONG)
    yield made
    await made.close()


@pytest.fixture(scope="module")
def direct() -> ChatFormat:
    return ModelSource(str(model_path())).load()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


LONG_TEXT = "It was warm in Oslo. " * (LONG // 20)


async def test_many_at_once(tokenizing: Tokenizing, direct: ChatFormat) -> None:
    prompts = await asyncio.gather(*(tokenizing.prompt([user(f"Hello {n}?")], NO_ARGS, []) for n in range(200)))
    assert [prompt.ids for prompt in prompts] == [
        direct.prompt([user(f"Hello {n}?")], NO_ARGS, []).ids for n in range(200)
    ]
    assert tokenizing.helper_pid is None


async def test_short_prompts_are_made_at_once(tokenizing: Tokenizing, direct: ChatFormat) -> None:
    """Unless the thread has work: two would only wait for each other. Either way they are the same."""
    if not tokenizing.chat_format.vocabulary.encodes_quickly:
        pytest.skip("fastokens is not installed")
    encode = tokenizing.chat_format.vocabulary.encode
    messages = [user("Hello?")]
    candidates: list[Candidate] = []
    for _ in range(3):
        task = asyncio.create_task(tokenizing.prompt(messages, NO_ARGS, candidates))
        await asyncio.sleep(0)
        assert task.done()
        held = threading.Event()
        longer = asyncio.create_task(
            tokenizing.prompt([user(LONG_TEXT[: LONG - 100])], NO_ARGS, [], begun=partial(_wait_in_a_thread, held))
        )
        beside = asyncio.create_task(tokenizing.prompt(messages, NO_ARGS, candidates))
        await asyncio.sleep(0)
        assert not beside.done()
        held.set()
        assert task.result() == await beside == direct.prompt(messages, NO_ARGS, candidates)
        await longer
        prompt, output = task.result().ids, encode("Yes.<|im_end|>", add_special_tokens=False)
        messages = [*messages, {"role": "assistant", "content": "Yes."}, user("More?")]
        older = [Candidate(known.length, _never_loaded) for known in candidates]
        candidates = [Candidate(len(messages) - 1, lambda loaded=(prompt, output): loaded), *older]  # type: ignore[misc]


def _wait_in_a_thread(held: threading.Event) -> None:
    if threading.current_thread() is not threading.main_thread():
        assert held.wait(PATIENCE)


def _never_loaded() -> tuple[list[int], list[int]]:
    raise AssertionError("the deepest candidate is continued: others need not be read")


async def test_what_is_refused_is_raised(tokenizing: Tokenizing) -> None:
    with pytest.raises(Unrenderable, match="'critic'"):
        await tokenizing.prompt([{"role": "critic", "content": "x"}], NO_ARGS, [])
    with pytest.raises(Unrenderable, match="no_such_thing"):
        await tokenizing.prompt([user(LONG_TEXT)], TemplateArgs(kwargs={"no_such_thing": 1}), [])


async def test_a_caller_that_leaves_stops_nothing(tokenizing: Tokenizing) -> None:
    # Long enough to be encoded on the thread.
    messages = [[user(f"{LONG_TEXT[: LONG - 1000]} Hello {n}?")] for n in range(50)]
    tasks = [asyncio.create_task(tokenizing.prompt(asked, NO_ARGS, [])) for asked in messages]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    done = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in done[::2])
    assert all(not isinstance(result, BaseException) for result in done[1::2])


async def test_a_long_render_is_made_elsewhere(tokenizing: Tokenizing, direct: ChatFormat) -> None:
    messages = [user(LONG_TEXT)]
    prompt = await tokenizing.prompt(messages, NO_ARGS, [])
    assert prompt == direct.prompt(messages, NO_ARGS, [])
    pid = tokenizing.helper_pid
    assert pid is not None
    assert pid != os.getpid()

    output = direct.vocabulary.encode("Yes.<|im_end|>", add_special_tokens=False)
    parent = Candidate(2, lambda: (prompt.ids, output))
    history = [*messages, {"role": "assistant", "content": "Yes."}]
    short = await tokenizing.prompt([*history, user("More?")], NO_ARGS, [parent])
    assert short.bridged
    long = await tokenizing.prompt([*history, user(LONG_TEXT)], NO_ARGS, [parent])
    assert long.bridged
    assert long == direct.prompt([*history, user(LONG_TEXT)], NO_ARGS, [parent])
    assert tokenizing.helper_pid == pid


@pytest.fixture
async def shipped() -> AsyncIterator[Tokenizing]:
    """With the limits that a proxy has."""
    source = ModelSource(str(model_path()))
    made = Tokenizing(source.load(), source)
    if not made.chat_format.vocabulary.encodes_quickly:
        pytest.skip("fastokens is not installed")
    yield made
    await made.close()


@pytest.mark.parametrize(
    ("text", "helped"),
    [
        (LONG_TEXT * 8, False),
        (LONG_TEXT * 8 + "\u017f", True),  # a letter for which only `tokenizers` is trusted
        (LONG_TEXT * 48, True),
    ],
    ids=["long", "long for tokenizers", "longer"],
)
async def test_what_fastokens_encodes_needs_no_helper_unless_it_is_very_long(
    shipped: Tokenizing, direct: ChatFormat, text: str, helped: bool
) -> None:
    assert len(text) > LONG_CHARACTERS and (len(text) > LONG_CHARACTERS_QUICKLY) is (text == LONG_TEXT * 48)
    for message in (user(text), {"role": "user", "content": [{"type": "text", "text": text}]}):
        assert await shipped.prompt([message], NO_ARGS, []) == direct.prompt([message], NO_ARGS, [])
        assert (shipped.helper_pid is not None) is helped


async def test_a_helper_is_needed_as_before_once_fastokens_is_not_trusted(shipped: Tokenizing) -> None:
    shipped.chat_format.vocabulary._encoding._quick = None
    await shipped.prompt([user(LONG_TEXT * 8)], NO_ARGS, [])
    assert shipped.helper_pid is not None


async def test_the_helper_is_started_again_when_it_died(tokenizing: Tokenizing, direct: ChatFormat) -> None:
    messages = [user(LONG_TEXT)]
    await tokenizing.prompt(messages, NO_ARGS, [])
    pid = tokenizing.helper_pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    prompt = await tokenizing.prompt(messages, NO_ARGS, [])
    assert prompt == direct.prompt(messages, NO_ARGS, [])
    assert tokenizing.helper_pid not in (None, pid)


async def test_a_helper_that_cannot_start_is_an_error(direct: ChatFormat) -> None:
    tokenizing = Tokenizing(direct, ModelSource("/absent/model"), long_characters=LONG)
    with pytest.raises(RenderProcessFailed, match="died"):
        await tokenizing.prompt([user(LONG_TEXT)], NO_ARGS, [])
    await tokenizing.close()


async def test_close_ends_helper_and_callers(direct: ChatFormat) -> None:
    tokenizing = Tokenizing(direct, ModelSource(str(model_path())), long_characters=LONG)
    waiting = asyncio.create_task(tokenizing.prompt([user(LONG_TEXT)], NO_ARGS, []))
    while tokenizing.helper_pid is None:
        await asyncio.sleep(0.01)
    pid = tokenizing.helper_pid
    await tokenizing.close()
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError | Exception)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


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
async def test_the_loop_goes_on_while_a_long_text_is_encoded_in_a_thread(shipped: Tokenizing, text: str) -> None:
    """Also where it encodes something itself meanwhile, which waits for no long text."""
    await shipped.prompt([user(text * 10_000)], NO_ARGS, [])
    long = text * (LONG_CHARACTERS_QUICKLY // len(text))
    numbers = count()

    def encode() -> None:
        shipped.chat_format.vocabulary.encode(f"It is {next(numbers)}.", add_special_tokens=False)

    assert await longest_hold(asyncio.create_task(shipped.prompt([user(long)], NO_ARGS, [])), encode) < 0.25
    assert shipped.helper_pid is None


async def test_replies_are_read_and_streamed(tokenizing: Tokenizing) -> None:
    prompt = await tokenizing.prompt([user("Hello?")], NO_ARGS, [])
    output = tokenizing.chat_format.vocabulary.encode("Fine.<|im_end|>", add_special_tokens=False)
    reader = tokenizing.chat_format.reader(prompt.ids, NO_ARGS, seed=b"turn")
    parser = DeltaParser(reader)
    sent = parser.feed(output)
    message = await tokenizing.read(reader, output)
    assert [*sent, *parser.finish(message)] == [Text("Fine.")]
    assert message["content"] == "Fine."
