"""A chat call's whole answer, as the stock `openai` SDK brings it: at once, or in a stream's chunks."""

from dataclasses import dataclass
from typing import Any

import httpx
import openai


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """One complete answer, as its client got it."""

    turn_id: str
    parent_id: str | None
    """The answer that the request went on from."""
    message: dict[str, Any]
    finish_reason: str
    logprobs: list[float] | None


class Joined:
    """What a stream's chunks say together."""

    def __init__(self) -> None:
        self.turn_id = ""
        self.message: dict[str, Any] = {"role": "assistant"}
        self.finish_reason: str | None = None
        self.logprobs: list[float] = []
        self.usage: Any = None

    def add(self, chunk: Any) -> None:
        """Take in an SDK's chunk."""
        self.turn_id = chunk.id
        if chunk.usage is not None:
            self.usage = chunk.usage
        for choice in chunk.choices:
            assert self.finish_reason is None, "nothing is said behind the finish reason"
            self.finish_reason = choice.finish_reason
            if choice.logprobs is not None:
                self.logprobs += [entry.logprob for entry in choice.logprobs.content or ()]
            self._add_delta(choice.delta)

    def _add_delta(self, delta: Any) -> None:
        for name in ("content", "reasoning_content"):
            text = getattr(delta, name, None)
            if text:
                self.message[name] = self.message.get(name, "") + text
        for call in delta.tool_calls or ():
            calls = self.message.setdefault("tool_calls", [])
            if call.index == len(calls):
                calls.append(
                    {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": ""}}
                )
            calls[call.index]["function"]["arguments"] += call.function.arguments or ""


async def whole(
    client: openai.AsyncOpenAI, request: dict[str, Any], headers: dict[str, str], last: str | None
) -> Answer:
    """The answer of a call that goes on from the turn `last`. Raises what the SDK raises."""
    reply = await client.chat.completions.create(**request, extra_headers=headers)
    choice = reply.choices[0]
    return Answer(
        turn_id=reply.id,
        parent_id=last,
        message=choice.message.model_dump(exclude_none=True),
        finish_reason=choice.finish_reason,
        logprobs=None if choice.logprobs is None else [entry.logprob for entry in choice.logprobs.content],
    )


async def streamed(
    client: openai.AsyncOpenAI, request: dict[str, Any], headers: dict[str, str], last: str | None
) -> Answer:
    """The same in a stream. Raises httpx.RemoteProtocolError, too, where it ends before its finish reason."""
    joined = Joined()
    async with await client.chat.completions.create(**request, stream=True, extra_headers=headers) as events:
        async for event in events:
            joined.add(event)
    if joined.finish_reason is None:
        raise httpx.RemoteProtocolError("the stream ended without a finish reason")
    return Answer(
        turn_id=joined.turn_id,
        parent_id=last,
        message=joined.message,
        finish_reason=joined.finish_reason,
        logprobs=joined.logprobs if request.get("logprobs") else None,
    )
