"""Prompts as a session's turns are given them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest
from tests.unit.proxy.capture.sessions import open_session
from tests.unit.proxy.dialects.conversations import CHAT, MESSAGES, RESPONSES, USER
from tests.unit.proxy.tokens.models.families import FAMILIES, write_model

from rolloutfleet_proxy.capture.bodies import LARGE_REQUEST
from rolloutfleet_proxy.capture.prompting import Prompting, PromptJob
from rolloutfleet_proxy.dialects.base import Dialect, Reading, TurnRequest
from rolloutfleet_proxy.domain.errors import ContextExceeded, InvalidParameter
from rolloutfleet_proxy.domain.lineage import MAIN
from rolloutfleet_proxy.domain.messages import NO_ARGS
from rolloutfleet_proxy.sessions.paths import Paths
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing

CUT = '{"q": "a'
CALL_PLACE = "messages[1].tool_calls[0].function.arguments"


def calling(arguments: Any) -> dict[str, Any]:
    return {"id": "c", "type": "function", "function": {"name": "find", "arguments": arguments}}


ITEM = {"type": "function_call", "call_id": "c", "name": "find", "arguments": CUT}
TOOL = {"name": "find", "description": "Finds.", "parameters": {"type": "object", "properties": {}}}
TEMPLATE = "{{ strftime_now('%d %b %Y') }}{% for m in messages %} {{ m.content }}{% endfor %}"


@pytest.fixture
async def prompting(tmp_path: Path) -> AsyncIterator[Prompting]:
    """Over a model's own template, which has no place for tools or calls."""
    directory = write_model(tmp_path / "m", FAMILIES["qwen3"])
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    source = ModelSource(str(directory))
    tokenizing = Tokenizing(source.load(), source)
    large_bodies = ThreadPoolExecutor(1)
    yield Prompting(
        tokenizing=tokenizing,
        paths=cast(Paths, None),  # there are no turns yet
        reader=cast(Reader, None),
        large_bodies=large_bodies,
    )
    await tokenizing.close()
    large_bodies.shutdown()


LONG = "word " * 400_000


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [{"role": "user", "content": LONG}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]},
        {"messages": [USER, {"role": "assistant", "content": "a", "reasoning_content": LONG}, USER]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [calling(json.dumps({"q": LONG}))]}, USER]},
        {"messages": [USER, {"role": "assistant", "tool_calls": [calling({"q": LONG})]}, USER]},
        {"messages": [USER], "tools": [{"type": "function", "function": {**TOOL, "description": LONG}}]},
    ],
    ids=["content", "parts", "reasoning", "arguments", "arguments as an object", "tools"],
)
async def test_request_that_cannot_fit_is_refused_before_it_is_encoded(
    prompting: Prompting, body: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    chat_format = prompting.tokenizing.chat_format
    monkeypatch.setattr(chat_format.vocabulary, "longest_token", 10)
    monkeypatch.setattr(chat_format, "context_length", 199_990)
    job = job_of(CHAT.read(json.dumps(body).encode(), Reading()), nbytes=LARGE_REQUEST)
    with pytest.raises(ContextExceeded, match="199990 tokens: messages and tools have 20000"):
        await prompting.prompt(job)


def job_of(request: TurnRequest, *, created_at: float = 0.0, nbytes: int = 0) -> PromptJob:
    return PromptJob(session=open_session(created_at), request=request, lineage=MAIN, nbytes=nbytes)


async def test_prompts_tell_the_date_of_their_sessions_start(prompting: Prompting) -> None:
    found = []
    for created_at in (0.0, 86_400.0):
        job = job_of(request(), created_at=created_at)
        made = await prompting.prompt(job)
        assert await prompting.length(job) == len(made.prompt.ids)
        found.append(prompting.tokenizing.chat_format.vocabulary.decode(made.prompt.ids))
    assert found == ["01 Jan 1970 Hello?", "02 Jan 1970 Hello?"]


@pytest.mark.parametrize(
    ("dialect", "body", "param"),
    [
        (CHAT, {"messages": [USER, {"role": "assistant", "tool_calls": [calling(CUT)]}]}, CALL_PLACE),
        (RESPONSES, {"input": [USER, ITEM]}, "input"),
        (CHAT, {"messages": [USER], "tools": [{"type": "function", "function": TOOL}]}, "tools"),
        (RESPONSES, {"input": [USER], "tools": [{"type": "function", **TOOL}]}, "tools"),
        (
            MESSAGES,
            {"messages": [USER], "max_tokens": 9, "tools": [{"name": "find", "input_schema": {"type": "object"}}]},
            "tools",
        ),
    ],
)
async def test_a_request_that_would_lose_calls_or_tools_is_refused_with_its_field(
    prompting: Prompting, dialect: Dialect[Any], body: dict[str, Any], param: str
) -> None:
    asked = dialect.read(json.dumps(body).encode(), Reading())
    with pytest.raises(InvalidParameter) as caught:
        await prompting.prompt(job_of(asked))
    assert caught.value.param == param


def request() -> TurnRequest:
    return TurnRequest(
        messages=[{"role": "user", "content": "Hello?"}],
        model=None,
        template=NO_ARGS,
        calls=None,
        max_tokens=None,
        sampling={},
        stops=(),
        stream=False,
        logprobs=False,
        top_logprobs=0,
    )
