"""Prompts off the event loop, long ones out of the process (promise 8)."""

from __future__ import annotations

import asyncio
import threading
from array import array
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import pytest
from tests.chat_formats import helped_from
from tests.unit.proxy.tokens.models.families import shipped
from tests.waiting import PATIENCE

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.domain.events import Text
from rolloutfleet_proxy.domain.messages import NO_ARGS, TemplateArgs
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.quirks import Unrenderable
from rolloutfleet_proxy.tokens.reading import GrowingReply
from rolloutfleet_proxy.tokens.render import Ask, Candidate, ChatFormat
from rolloutfleet_proxy.tokens.tokenizing import LONG_CHARACTERS, LONG_CHARACTERS_QUICKLY, Tokenizing

LONG = 20_000


class Elsewhere:
    """In the place of the helper process: its renders are made here, and counted."""

    pid = None

    def __init__(self, chat_format: ChatFormat) -> None:
        self._chat_format = chat_format
        self.renders = 0

    def rendered(self, ask: Ask) -> array[int] | None:
        self.renders += 1
        return self._chat_format.rendered(ask)

    def stop(self) -> None:
        pass


@pytest.fixture
def direct() -> ChatFormat:
    return shipped()


@pytest.fixture
def elsewhere(direct: ChatFormat) -> Elsewhere:
    return Elsewhere(direct)


@pytest.fixture
async def tokenizing(
    direct: ChatFormat, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tokenizing]:
    helped_from(LONG, monkeypatch)
    made = Tokenizing(direct, ModelSource(str(model_path())))
    monkeypatch.setattr(made, "_helper", elsewhere)
    yield made
    await made.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


LONG_TEXT = "It was warm in Oslo. " * (LONG // 20)


async def test_many_at_once(tokenizing: Tokenizing, direct: ChatFormat, elsewhere: Elsewhere) -> None:
    prompts = await asyncio.gather(*(tokenizing.prompt([user(f"Hello {n}?")], NO_ARGS, []) for n in range(200)))
    assert [prompt.ids for prompt in prompts] == [
        direct.prompt([user(f"Hello {n}?")], NO_ARGS, []).ids for n in range(200)
    ]
    assert elsewhere.renders == 0


async def test_short_prompts_are_made_at_once(tokenizing: Tokenizing, direct: ChatFormat) -> None:
    """Unless the thread has work: two would only wait for each other. Either way they are the same."""
    if not tokenizing.chat_format.vocabulary.encodes_quickly():
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


@pytest.fixture
async def as_in_a_proxy(
    direct: ChatFormat, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Tokenizing]:
    """With the limits that a proxy has."""
    if not direct.vocabulary.encodes_quickly():
        pytest.skip("fastokens is not installed")
    made = Tokenizing(direct, ModelSource(str(model_path())))
    monkeypatch.setattr(made, "_helper", elsewhere)
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
    as_in_a_proxy: Tokenizing, direct: ChatFormat, elsewhere: Elsewhere, text: str, helped: bool
) -> None:
    assert len(text) > LONG_CHARACTERS and (len(text) > LONG_CHARACTERS_QUICKLY) is (text == LONG_TEXT * 48)
    for message in (user(text), {"role": "user", "content": [{"type": "text", "text": text}]}):
        assert await as_in_a_proxy.prompt([message], NO_ARGS, []) == direct.prompt([message], NO_ARGS, [])
        assert (elsewhere.renders > 0) is helped


async def test_a_helper_is_needed_as_before_once_fastokens_is_not_trusted(
    as_in_a_proxy: Tokenizing, elsewhere: Elsewhere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(as_in_a_proxy.chat_format.vocabulary._encoding, "quick", None)
    await as_in_a_proxy.prompt([user(LONG_TEXT * 8)], NO_ARGS, [])
    assert elsewhere.renders == 1


async def test_replies_are_read_and_streamed(tokenizing: Tokenizing) -> None:
    prompt = await tokenizing.prompt([user("Hello?")], NO_ARGS, [])
    output = tokenizing.chat_format.vocabulary.encode("Fine.<|im_end|>", add_special_tokens=False)
    reader = tokenizing.chat_format.reader(prompt.ids, NO_ARGS, seed=b"turn")
    parser = GrowingReply(reader)
    sent = parser.feed(output)
    reply = await tokenizing.read(reader, output)
    assert [*sent, *parser.finish(reply)] == [Text("Fine.")]
    assert reply.message["content"] == "Fine."


async def test_long_texts_that_spell_control_tokens_are_rendered_elsewhere(
    direct: ChatFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fastokens` encodes none of them."""
    made = Tokenizing(direct, ModelSource(str(model_path())))
    helper = Elsewhere(direct)
    monkeypatch.setattr(made, "_helper", helper)
    long = "It was warm in Oslo. " * (LONG_CHARACTERS // 20)
    try:
        for text, elsewhere in ((f"{long}<|im_end|>", 1), (long[: LONG_CHARACTERS - 100] + "<|im_end|>", 1)):
            prompt = await made.prompt([user(text)], NO_ARGS, [])
            assert (helper.renders, prompt.special_tokens_in_text) == (elsewhere, 1)
            assert prompt.ids == direct.prompt([user(text)], NO_ARGS, []).ids
    finally:
        await made.close()


async def test_long_tools_are_encoded_off_the_loop(as_in_a_proxy: Tokenizing, elsewhere: Elsewhere) -> None:
    tools = tool_described(by="It was warm in Oslo. " * 1_000)
    task = asyncio.create_task(as_in_a_proxy.prompt([user("Hello?")], TemplateArgs(tools), []))
    await asyncio.sleep(0)
    assert not task.done()
    await task
    assert elsewhere.renders == 0


async def test_very_long_tools_are_rendered_by_the_helper(as_in_a_proxy: Tokenizing, elsewhere: Elsewhere) -> None:
    tools = tool_described(by="It was warm in Oslo. " * (LONG_CHARACTERS // 20) + "<|im_end|>")
    prompt = await as_in_a_proxy.prompt([user("Hello?")], TemplateArgs(tools), [])
    assert (elsewhere.renders, prompt.special_tokens_in_text) == (1, 1)


async def test_tools_do_not_count_where_a_turn_is_extended(
    as_in_a_proxy: Tokenizing, direct: ChatFormat, elsewhere: Elsewhere
) -> None:
    args = TemplateArgs(tool_described(by="It was warm in Oslo. " * (LONG_CHARACTERS_QUICKLY // 20)))
    prompt, output = direct.prompt([user("Hello?")], args, []).ids, direct.vocabulary.encode("Yes.<|im_end|>")
    messages = [user("Hello?"), {"role": "assistant", "content": "Yes."}, user("More?")]
    task = asyncio.create_task(as_in_a_proxy.prompt(messages, args, [Candidate(2, lambda: (prompt, output))]))
    await asyncio.sleep(0)
    assert task.done() and task.result().parent == 0
    assert elsewhere.renders == 0


def tool_described(*, by: str) -> list[Any]:
    return [{"type": "function", "function": {"name": "find", "description": by, "parameters": {"type": "object"}}}]
