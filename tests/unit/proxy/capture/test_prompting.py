"""Prompts as a session's turns are given them."""

from __future__ import annotations

from concurrent.futures import Executor
from pathlib import Path
from typing import cast

from tests.unit.proxy.capture.sessions import open_session
from tests.unit.proxy.tokens.models.families import FAMILIES, write_model

from rolloutfleet_proxy.capture.prompting import Prompting, PromptJob
from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.lineage import MAIN
from rolloutfleet_proxy.domain.messages import NO_ARGS
from rolloutfleet_proxy.sessions.paths import Paths
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.tokens.render_process import ModelSource
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing

TEMPLATE = "{{ strftime_now('%d %b %Y') }}{% for m in messages %} {{ m.content }}{% endfor %}"


async def test_prompts_tell_the_date_of_their_sessions_start(tmp_path: Path) -> None:
    directory = write_model(tmp_path / "m", FAMILIES["qwen3"])
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    source = ModelSource(str(directory))
    tokenizing = Tokenizing(source.load(), source)
    prompting = Prompting(
        tokenizing=tokenizing,
        paths=cast(Paths, None),  # there are no turns yet
        reader=cast(Reader, None),
        large_bodies=cast(Executor, None),
    )
    try:
        found = []
        for created_at in (0.0, 86_400.0):
            job = PromptJob(session=open_session(created_at), request=request(), lineage=MAIN, nbytes=0)
            made = await prompting.prompt(job)
            assert await prompting.length(job) == len(made.prompt.ids)
            found.append(tokenizing.chat_format.vocabulary.decode(made.prompt.ids))
    finally:
        await tokenizing.close()
    assert found == ["01 Jan 1970 Hello?", "02 Jan 1970 Hello?"]


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
