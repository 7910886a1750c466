"""Agents for a trainer's tests: a few calls with the stock SDK, and no more."""

import asyncio
from collections.abc import Iterable
from typing import Any

import httpx
import openai
from tests.waiting import PATIENCE

from rolloutfleet.fleet import AsyncSession, Session

Handle = AsyncSession | Session


async def talk(session: Handle, *, turns: int = 1, max_tokens: int = 8) -> list[str]:
    """Some turns of one session; their ids."""
    ids: list[str] = []
    messages: list[dict[str, str]] = []
    async with openai.AsyncOpenAI(
        base_url=session.base_url, api_key=session.api_key, max_retries=0, timeout=PATIENCE
    ) as client:
        for turn in range(turns):
            messages.append({"role": "user", "content": f"Tell me about {session.session_id}, {turn}."})
            reply = await client.chat.completions.create(
                model="simulated",
                messages=messages,  # type: ignore[arg-type]
                max_tokens=max_tokens,
            )
            ids.append(reply.id)
            messages.append({"role": "assistant", "content": str(reply.choices[0].message.content)})
    return ids


async def talk_all(sessions: Iterable[Handle], *, turns: int = 1) -> None:
    await asyncio.gather(*(talk(session, turns=turns) for session in sessions))


def talked(sessions: Iterable[Handle], *, turns: int = 1) -> None:
    """The same, for code that blocks."""
    asyncio.run(talk_all(sessions, turns=turns))


def say(session: Handle, messages: list[Any], *, max_tokens: int = 30, **options: Any) -> tuple[list[Any], str]:
    """One turn: the messages with the answer, and the turn's id."""
    reply = httpx.post(
        f"{session.base_url}/chat/completions",
        json={"model": "simulated", "messages": messages, "max_tokens": max_tokens, **options},
        headers={"authorization": f"Bearer {session.api_key}"},
        timeout=PATIENCE,
    ).raise_for_status()
    return [*messages, reply.json()["choices"][0]["message"]], reply.json()["id"]
