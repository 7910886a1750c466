"""Long prompts are made in a helper process (promise 8)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.chat_formats import helped_from
from tests.unit.proxy.tokens.models.families import shipped
from tests.waiting import comes_true

from rolloutfleet_engine import model_path
from rolloutfleet_proxy.domain.messages import NO_ARGS
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat
from rolloutfleet_proxy.tokens.render_process import RenderProcessFailed
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing

LONG = 20_000
LONG_TEXT = "It was warm in Oslo. " * (LONG // 20)


@pytest.fixture
def direct() -> ChatFormat:
    return shipped()


@pytest.fixture(autouse=True)
def help_of_short_renders(monkeypatch: pytest.MonkeyPatch) -> None:
    helped_from(LONG, monkeypatch)


@pytest.fixture
async def tokenizing(direct: ChatFormat) -> AsyncIterator[Tokenizing]:
    made = Tokenizing(direct, ModelSource(str(model_path())))
    yield made
    await made.close()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


async def test_a_long_render_is_made_elsewhere(tokenizing: Tokenizing, direct: ChatFormat) -> None:
    messages = [user(LONG_TEXT)]
    prompt = await tokenizing.prompt(messages, NO_ARGS, [])
    assert prompt == direct.prompt(messages, NO_ARGS, [])
    pid = tokenizing._helper.pid
    assert pid is not None
    assert pid != os.getpid()

    output = direct.vocabulary.encode("Yes.<|im_end|>", add_special_tokens=False)
    parent = Candidate(2, lambda: (prompt.ids, output))
    history = [*messages, {"role": "assistant", "content": "Yes."}]
    short = await tokenizing.prompt([*history, user("More?")], NO_ARGS, [parent])
    assert short.parent == 0
    long = await tokenizing.prompt([*history, user(LONG_TEXT)], NO_ARGS, [parent])
    assert long.parent == 0
    assert long == direct.prompt([*history, user(LONG_TEXT)], NO_ARGS, [parent])
    assert tokenizing._helper.pid == pid


async def test_the_helper_is_started_again_when_it_died(tokenizing: Tokenizing, direct: ChatFormat) -> None:
    messages = [user(LONG_TEXT)]
    await tokenizing.prompt(messages, NO_ARGS, [])
    pid = tokenizing._helper.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    prompt = await tokenizing.prompt(messages, NO_ARGS, [])
    assert prompt == direct.prompt(messages, NO_ARGS, [])
    assert tokenizing._helper.pid not in (None, pid)


async def test_a_helper_that_cannot_start_is_an_error(direct: ChatFormat) -> None:
    tokenizing = Tokenizing(direct, ModelSource("/absent/model"))
    with pytest.raises(RenderProcessFailed, match="died"):
        await tokenizing.prompt([user(LONG_TEXT)], NO_ARGS, [])
    await tokenizing.close()


async def test_close_ends_helper_and_callers(direct: ChatFormat) -> None:
    tokenizing = Tokenizing(direct, ModelSource(str(model_path())))
    waiting = asyncio.create_task(tokenizing.prompt([user(LONG_TEXT)], NO_ARGS, []))
    await comes_true(lambda: tokenizing._helper.pid)
    pid = tokenizing._helper.pid
    assert pid is not None
    await tokenizing.close()
    assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError | Exception)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
