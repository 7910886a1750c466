"""Agents as people write them: a loop around the stock `openai` SDK. Nothing here knows RolloutFleet,
but for two things: the session's `base_url` and `api_key`, and an idempotency key a call."""

import asyncio
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import openai
from examples.quickstart.record import Answer, Record, text_of
from examples.quickstart.tools import TOOLS, run_tool

MODEL = "simulated"
SYSTEM = "You are a careful travel agent. Use the tools, then answer."
REQUESTS = (
    "I want to spend a weekend in {city}. What is the weather like, and what will 200 euros buy me there?",
    "And how would that be in winter?",
    "Thanks. Now sum it up for my mother, please.",
)
CITIES = ("Lisbon", "Kyoto", "Oslo", "Lima", "Cairo", "Quito")

CALLS_A_REQUEST = 6
"""An agent stops asking for tools after so many calls."""
ATTEMPTS = 40
PAUSE_AFTER_FAILURE = 0.5


@dataclass(kw_only=True)
class Agent:
    """One agent run, in one session."""

    number: int
    session_id: str
    base_url: str
    api_key: str
    record: Record
    progress: Callable[[], None]
    messages: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False

    @property
    def streams(self) -> bool:
        return self.number % 2 == 1

    @property
    def rewrites(self) -> bool:
        """One agent in nine forgets what came before its last request: a new branch of its session."""
        return self.number % 9 == 8

    @property
    def drops_reasoning(self) -> bool:
        """Many agent frameworks never send reasoning back."""
        return self.number % 4 == 2

    async def run(self) -> None:
        """All requests of the user, one after the other."""
        self.messages = [{"role": "system", "content": SYSTEM}]
        async with openai.AsyncOpenAI(base_url=self.base_url, api_key=self.api_key) as client:
            for index, request in enumerate(REQUESTS):
                if self.rewrites and index == len(REQUESTS) - 1:
                    self.messages = self.messages[:1]
                city = CITIES[self.number % len(CITIES)]
                self.messages.append({"role": "user", "content": request.format(city=city)})
                await self._answer_request(client)
                self.progress()
        self.done = True

    async def _answer_request(self, client: openai.AsyncOpenAI) -> None:
        for _ in range(CALLS_A_REQUEST):
            message = await self._call_until_it_works(client)
            self.messages.append(self._kept(message))
            calls = message.get("tool_calls") or []
            for call in calls:
                result = run_tool(call["function"]["name"], call["function"]["arguments"])
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
            if not calls:
                return

    def _kept(self, message: dict[str, Any]) -> dict[str, Any]:
        if self.drops_reasoning:
            return {name: value for name, value in message.items() if name != "reasoning_content"}
        return message

    async def _call_until_it_works(self, client: openai.AsyncOpenAI) -> dict[str, Any]:
        """A call that failed is made again with the same key, so that it never becomes two turns."""
        key = str(uuid.uuid4())
        for attempt in range(ATTEMPTS):
            try:
                return await self._call(client, key)
            except (openai.APIError, _CutStream):
                # The SDK's own retries are used up, or a stream broke off, which it never retries.
                self.record.attempts_that_failed += 1
                if attempt == ATTEMPTS - 1:
                    raise
                await asyncio.sleep(PAUSE_AFTER_FAILURE)
        raise AssertionError("unreachable")

    async def _call(self, client: openai.AsyncOpenAI, key: str) -> dict[str, Any]:
        asked: dict[str, Any] = {
            "model": MODEL,
            "messages": self.messages,
            "tools": TOOLS,
            "max_completion_tokens": 1024,
            "temperature": 1.0,
            "logprobs": True,
            "extra_headers": {"Idempotency-Key": key},
        }
        if not self.streams:
            completion = await client.chat.completions.create(**asked)
            choice = completion.choices[0]
            message: dict[str, Any] = choice.message.model_dump(exclude_none=True)
            logprobs = [each.logprob for each in (choice.logprobs and choice.logprobs.content) or ()]
            assert completion.usage is not None
            self._note(completion.id, message, choice.finish_reason, completion.usage.completion_tokens, logprobs)
            return message
        stream = await client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
        joined = _Joined()
        async for chunk in stream:
            joined.add(chunk)
        if joined.finish_reason is None:
            raise _CutStream
        self._note(joined.id, joined.message(), joined.finish_reason, joined.tokens, joined.logprobs)
        return joined.message()

    def _note(
        self, turn_id: str, message: dict[str, Any], finish_reason: str, tokens: int, logprobs: list[float]
    ) -> None:
        content, reasoning, calls = text_of(message)
        self.record.answers.append(
            Answer(
                session_id=self.session_id,
                turn_id=turn_id,
                finish_reason=finish_reason,
                content=content,
                reasoning=reasoning,
                tool_calls=calls,
                completion_tokens=tokens,
                logprobs=tuple(logprobs),
                follows_up=any(each["role"] == "assistant" for each in self.messages),
                appends=not self.rewrites,
                streamed=self.streams,
            )
        )


class _CutStream(Exception):
    """A stream that ended before it said why."""


class _Joined:
    """A message put together from a stream's deltas."""

    def __init__(self) -> None:
        self.id = ""
        self.finish_reason: str | None = None
        self.tokens = 0
        self.logprobs: list[float] = []
        self._content = ""
        self._reasoning = ""
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, chunk: Any) -> None:
        self.id = chunk.id
        if chunk.usage is not None:
            self.tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            self.finish_reason = choice.finish_reason or self.finish_reason
            self.logprobs.extend(each.logprob for each in (choice.logprobs and choice.logprobs.content) or ())
            self._content += choice.delta.content or ""
            self._reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            for piece in choice.delta.tool_calls or ():
                self._add_call(piece)

    def _add_call(self, piece: Any) -> None:
        call = self._calls.setdefault(
            piece.index, {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        )
        call["id"] = piece.id or call["id"]
        call["function"]["name"] += piece.function.name or ""
        call["function"]["arguments"] += piece.function.arguments or ""

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": self._content or None}
        if self._reasoning:
            message["reasoning_content"] = self._reasoning
        if self._calls:
            message["tool_calls"] = [call for _, call in sorted(self._calls.items())]
        return message
