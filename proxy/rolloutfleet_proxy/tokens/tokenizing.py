"""The chat format of the running process: prompts are made away from the event loop, very long ones in a process apart.

One thread does the encoding. A text so long that encoding it would hold the interpreter goes to a helper process, which
is started when it is first needed. What takes less time than handing it over stays on the loop: reading replies, which
needs no tokenizer, and prompts with little new text, where `encoding` has its quick form and nobody else encodes.
"""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import msgspec

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.tokens.loading import ModelSource
from rolloutfleet_proxy.tokens.reading import Reader, Reply
from rolloutfleet_proxy.tokens.render import Ask, Candidate, ChatFormat, Prompt, Render
from rolloutfleet_proxy.tokens.render_process import RenderProcess

T = TypeVar("T")

# About 50,000 tokens, which `tokenizers` takes 50 ms and more for.
LONG_CHARACTERS = 150_000
# The same where `fastokens` encodes all of them: 250,000 tokens of English, or a million of a script of other letters,
# for which the interpreter is held for some 50 ms at a time.
LONG_CHARACTERS_QUICKLY = 1_000_000
# Reading this many tokens takes about 10 ms.
_LONG_OUTPUT = 75_000
# Encoding this much takes 0.1 ms.
_SHORT_CHARACTERS = 16_000


class Tokenizing:
    """`ChatFormat` for an event loop. `close` it."""

    def __init__(self, chat_format: ChatFormat, source: ModelSource) -> None:
        self.chat_format = chat_format
        self._near = _Worker("tokenizer")
        self._far = _Worker("long renders")
        self._helper = RenderProcess(source)

    @property
    def waiting(self) -> dict[str, int]:
        """Jobs that a thread has not taken yet, by thread."""
        threads = {"tokenizer": self._near, "long_renders": self._far}
        return {name: max(0, len(each.unfinished) - 1) for name, each in threads.items()}

    async def prompt(
        self,
        messages: Sequence[Message],
        args: TemplateArgs,
        candidates: Sequence[Candidate],
        *,
        begun: Callable[[], None] = lambda: None,
    ) -> Prompt:
        """`ChatFormat.prompt`; `begun` is called when the wait for it is over.

        Candidates are loaded in another thread, the first may be on the loop and must not wait. Raises Unrenderable,
        RenderProcessFailed.
        """
        quickly = self.chat_format.vocabulary.encodes_quickly()
        if quickly and not self._near.unfinished and _is_short(messages, args, candidates):
            begun()
            renders = [self.chat_format.rendered]

            def once(ask: Ask) -> array[int] | None:
                """Render what was found to be short, and nothing after it. Raises _TooLong."""
                if not renders or (candidates and ask.turn is None):
                    raise _TooLong
                return renders.pop()(ask)

            with contextlib.suppress(_TooLong):
                prompt = self.chat_format.prompt(messages, args, candidates[:1], render=once)
                if prompt.parent is not None or len(candidates) < 2:
                    return prompt

        def make(render: Render) -> Prompt:
            begun()
            return self.chat_format.prompt(messages, args, candidates, render=render)

        try:
            return await self._near.run(partial(make, self._render_here))
        except _TooLong:
            return await self._far.run(partial(make, self._helper.rendered))

    async def read(self, reader: Reader, output_ids: Sequence[int], *, stop: str | None = None) -> Reply:
        """`Reader.read`."""
        read = partial(reader.read, output_ids, stop=stop)
        return read() if len(output_ids) < _LONG_OUTPUT else await self._near.run(read)

    async def close(self) -> None:
        """End threads and helper; what waits is cancelled."""
        await asyncio.to_thread(self._helper.stop)
        await asyncio.gather(self._near.close(), self._far.close())

    def _render_here(self, ask: Ask) -> array[int] | None:
        """`ChatFormat.rendered`, of LONG_CHARACTERS where they are encoded by `tokenizers`, and of
        LONG_CHARACTERS_QUICKLY where all are by `fastokens`. Raises _TooLong."""
        text = _json(ask.messages, ask.args.tools if ask.turn is None else None)
        is_quick = len(text) <= LONG_CHARACTERS_QUICKLY and self.chat_format.vocabulary.encodes_quickly(text)
        if len(text) > LONG_CHARACTERS and not is_quick:
            raise _TooLong
        return self.chat_format.rendered(ask)


def _is_short(messages: Sequence[Message], args: TemplateArgs, candidates: Sequence[Candidate]) -> bool:
    """Whether a prompt that extends the first candidate, or begins anew without one, has little text to encode."""
    new = _json(messages[candidates[0].length :], None) if candidates else _json(messages, args.tools)
    return len(new) <= _SHORT_CHARACTERS


def _json(messages: Sequence[Message], tools: list[Any] | None) -> str:
    """What is rendered, or about as much."""
    return msgspec.json.encode((messages, tools)).decode()


class _TooLong(Exception):
    """Not to be rendered here: it takes too long."""


class _Worker:
    """A thread that runs one job at a time; started with the first."""

    def __init__(self, name: str) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=name)
        self.unfinished: set[Future[Any]] = set()

    async def run(self, job: Callable[[], T]) -> T:
        future = self._thread.submit(job)
        self.unfinished.add(future)
        future.add_done_callback(self.unfinished.discard)
        return await asyncio.wrap_future(future)

    async def close(self) -> None:
        await asyncio.to_thread(self._thread.shutdown, cancel_futures=True)
