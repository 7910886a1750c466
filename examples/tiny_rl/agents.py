"""What agents do, and what it is worth: they know an address, a key, and the OpenAI SDK."""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import openai

from rolloutfleet import AsyncFleet

GROUPS: Final = 4
GROUP: Final = 8
TURNS: Final = 2
TOKENS: Final = 16
AT_ONCE: Final = 16
"""Agents that talk at the same time."""
WISH: Final = "e"
QUESTIONS: Final = ("Write.", "More.", "Go on.", "Again.")
TOOLS: Final[list[Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

Messages = list[dict[str, Any]]


def reward_of(text: str) -> float:
    """The share of its characters that are what the user wants. From 0 to 1."""
    return text.count(WISH) / len(text) if text else 0.0


async def roll_out(fleet: AsyncFleet) -> None:
    """GROUPS groups of sessions of two turns each, rewarded and closed."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(session: Any, task: int) -> None:
        async with room, client_of(session) as client:
            messages: Messages = []
            rewards = []
            for turn in range(TURNS):
                messages.append({"role": "user", "content": QUESTIONS[(task + turn) % len(QUESTIONS)]})
                said = await ask(client, messages, max_tokens=TOKENS)
                rewards.append(reward_of(text_of(said)))
                messages.append(said)
            await session.reward(sum(rewards) / len(rewards))

    async def group(task: int) -> None:
        async with await fleet.start_group(GROUP, f"task-{task}") as sessions, asyncio.TaskGroup() as at_work:
            for session in sessions:
                at_work.create_task(one(session, task))

    async with asyncio.TaskGroup() as groups:
        for task in range(GROUPS):
            groups.create_task(group(task))


def client_of(session: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, timeout=300, max_retries=4)


async def ask(client: openai.AsyncOpenAI, messages: Messages, **options: Any) -> dict[str, Any]:
    """One call; the assistant's message, as an agent appends it."""
    answer = await client.chat.completions.create(
        model="tiny",
        messages=messages,  # type: ignore[arg-type]
        temperature=1.0,
        **options,
    )
    said: dict[str, Any] = answer.choices[0].message.model_dump(exclude_none=True)
    return said


async def ask_streaming(
    client: openai.AsyncOpenAI, messages: Messages, seen: Callable[[int], None], **options: Any
) -> dict[str, Any]:
    """The same as a stream; `seen` is told of every chunk."""
    parts = {"content": "", "reasoning_content": ""}
    stream: Any = await client.chat.completions.create(
        model="tiny",
        messages=messages,  # type: ignore[arg-type]
        temperature=1.0,
        stream=True,
        **options,
    )
    chunks = 0
    async for chunk in stream:
        chunks += 1
        seen(chunks)
        for name in parts:
            parts[name] += getattr(chunk.choices[0].delta, name, None) or "" if chunk.choices else ""
    return {"role": "assistant"} | {name: text for name, text in parts.items() if text}


def text_of(message: dict[str, Any]) -> str:
    return f"{message.get('reasoning_content') or ''}{message.get('content') or ''}"
