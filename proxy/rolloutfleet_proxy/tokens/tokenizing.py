"""The chat format of the running process: prompts are made away from the event loop, very long ones in a process apart.

One thread does the encoding. Its answers reach the loop in batches, with one wake-up for as many as are ready. A text
so long that encoding it would hold the interpreter goes to a helper process, which is started when it is first needed.
What takes less time than handing it over stays on the loop: reading replies, which needs no tokenizer, and prompts
with little new text, where `encoding` has its quick form and nobody else encodes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from array import array
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from queue import SimpleQueue
from threading import Thread
from typing import Any, TypeVar

from rolloutfleet_proxy.domain.messages import Message, TemplateArgs
from rolloutfleet_proxy.tokens.deltas import DeltaParser
from rolloutfleet_proxy.tokens.reading import Parsed
from rolloutfleet_proxy.tokens.render import Candidate, ChatFormat, Prompt
from rolloutfleet_proxy.tokens.render_process import ModelSource, RenderProcess

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

    def __init__(self, chat_format: ChatFormat, source: ModelSource, *, long_characters: int | None = None) -> None:
        """`long_characters` is given to have shorter texts rendered in the helper process."""
        self.chat_format = chat_format
        self._near = _Worker("tokenizer")
        self._far = _Worker("long renders")
        long, long_quickly = (long_characters or LONG_CHARACTERS), (long_characters or LONG_CHARACTERS_QUICKLY)
        self._near_renders = _NearRenders(chat_format, long, long_quickly)
        short = min(_SHORT_CHARACTERS, long)
        self._short_renders = _NearRenders(chat_format, short, short)
        self._helper = RenderProcess(source)

    @property
    def helper_pid(self) -> int | None:
        """The helper process, while there is one."""
        return self._helper.pid

    @property
    def cache_nbytes(self) -> int:
        return self.chat_format.cache_nbytes

    @property
    def waiting(self) -> dict[str, int]:
        """Jobs that a thread has not taken yet, by thread."""
        return {"tokenizer": self._near.waiting, "long_renders": self._far.waiting}

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
        if self.chat_format.encodes_quickly and self._near.idle:
            begun()
            deepest = candidates[0] if candidates else None
            with contextlib.suppress(_TooLong):
                prompt = self.chat_format.prompt_at_once(messages, args, deepest, renders=self._short_renders)
                if prompt is not None:
                    return prompt

        def make(renders: _NearRenders | RenderProcess) -> Prompt:
            begun()
            return self.chat_format.prompt(messages, args, candidates, renders=renders)

        try:
            return await self._near.run(partial(make, self._near_renders))
        except _TooLong:
            return await self._far.run(partial(make, self._helper))

    async def parse(
        self,
        prompt_ids: Sequence[int],
        output_ids: Sequence[int],
        args: TemplateArgs,
        *,
        seed: bytes,
        stop: str | None = None,
    ) -> Parsed:
        """`ChatFormat.parse`."""

        def parse() -> Parsed:
            return self.chat_format.parse(prompt_ids, output_ids, args, seed=seed, stop=stop)

        return parse() if len(output_ids) < _LONG_OUTPUT else await self._near.run(parse)

    def deltas(
        self, prompt_ids: Sequence[int], args: TemplateArgs, *, seed: bytes, stops: Sequence[str] = ()
    ) -> DeltaParser:
        """What turns the reply to a prompt into a stream's deltas."""
        return DeltaParser(self.chat_format.reader(prompt_ids, args, seed=seed), stops=stops)

    async def close(self) -> None:
        """End threads and helper; what waits is cancelled."""
        await asyncio.get_running_loop().run_in_executor(None, self._helper.stop)
        await asyncio.gather(self._near.close(), self._far.close())


def _unless_done(future: asyncio.Future[Any], settle: Callable[[], object]) -> None:
    if not future.done():
        settle()


class _TooLong(Exception):
    """Not to be rendered in this process."""


class _NearRenders:
    """The renders of this process, for texts that are short enough."""

    def __init__(self, chat_format: ChatFormat, long_characters: int, long_characters_quickly: int) -> None:
        """The two are what is too long where a text is encoded by `tokenizers`, and where all are by `fastokens`."""
        self._format = chat_format
        self._long_characters = long_characters
        self._long_characters_quickly = long_characters_quickly

    def extension(
        self, tail: list[int], output: list[int], messages: list[Message], args: TemplateArgs
    ) -> array[int] | None:
        self._refuse_long(messages)
        return self._format.extension(tail, output, messages, args)

    def full(self, messages: list[Message], args: TemplateArgs) -> array[int]:
        self._refuse_long(messages)
        return self._format.full(messages, args)

    def _refuse_long(self, messages: list[Message]) -> None:
        texts = [text for message in messages for text in _texts(message)]
        characters = sum(map(len, texts))
        if characters > self._long_characters and (
            characters > self._long_characters_quickly or not self._format.vocabulary.encodes_quickly_all(texts)
        ):
            raise _TooLong


def _texts(message: Message) -> Iterator[str]:
    """What a message is rendered from, or about as much."""
    yield _text(message["content"])
    yield message.get("reasoning_content") or ""
    for call in message.get("tool_calls") or ():
        yield _text(call.get("function", {}).get("arguments"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


class _Worker:
    """A thread that runs one job at a time; started with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._done: deque[Callable[[], None]] = deque()
        self._delivering = False
        self._waiting: set[asyncio.Future[Any]] = set()
        self._unfinished = 0

    @property
    def idle(self) -> bool:
        """Whether the thread has nothing to do. On the loop."""
        return self._unfinished == 0

    @property
    def waiting(self) -> int:
        return self._jobs.qsize()

    async def run(self, job: Callable[[], T]) -> T:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()

        def work() -> None:
            settle: Callable[[], object] = future.cancel
            if not future.cancelled():
                try:
                    settle = partial(future.set_result, job())
                except BaseException as error:
                    settle = partial(future.set_exception, error)
            self._deliver_soon(loop, partial(_unless_done, future, settle))

        if self._thread is None:
            self._thread = Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()
        self._waiting.add(future)
        self._unfinished += 1
        self._jobs.put(work)
        try:
            return await future
        finally:
            self._waiting.discard(future)

    async def close(self) -> None:
        for future in list(self._waiting):
            future.cancel()
        self._jobs.put(None)
        if self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._thread.join, 10)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()
            del job  # Else the last prompt's messages stay in memory until the next one comes.

    def _deliver_soon(self, loop: asyncio.AbstractEventLoop, deliver: Callable[[], Any]) -> None:
        self._done.append(deliver)
        if not self._delivering:
            self._delivering = True
            try:
                loop.call_soon_threadsafe(self._deliver)
            except RuntimeError:  # the loop has been closed: nobody waits any more
                self._done.clear()

    def _deliver(self) -> None:
        # Before the first is taken: what is appended from here on either is taken below or asks for another delivery.
        self._delivering = False
        while self._done:
            self._done.popleft()()
            self._unfinished -= 1
