"""Agents with the stock `openai` SDK, which go on through every kill.

Whatever a call ends with but an answer, it is made again, under the key that it had. Agents stream or don't, and leave
retries to the SDK or make them themselves with an Idempotency-Key. Their sessions are started again by their keys, and
are rewarded and closed in the end, or left alone until they are dumped.
"""

import asyncio
import itertools
import re
from collections.abc import Callable
from random import Random
from typing import Any

import httpx
import openai
from tests.integration.proxy.answers import Answer, streamed, whole
from tests.timing.kills.asking import AGAIN, TIMEOUT, Asking, Unexpected
from tests.timing.kills.journal import CALL, CLOSE, REWARD, START, Talk

from rolloutfleet_proxy.cluster.placement import keeper_of

TURNS = 3
MAX_TOKENS = 40
RETRIES = 20
"""Of the SDK."""
LEFT_ALONE = 0.45
"""The share of sessions that nobody ends: they go stale, and are dumped."""
STALE_AFTER = 2.0
SESSION = re.compile(r"\bs\d+-[0-9a-f]{12}-[0-9a-f]{16}\b")
GONE = 410
"""What a session is that went stale before its agent was done, and may have been trained since."""


class Agents:
    """All of them. `closed` is told of each session that was closed, with the proxy that owns it."""

    def __init__(self, asking: Asking, *, proxies: int, seed: int, closed: Callable[[str, int], object]) -> None:
        self._asking = asking
        self._journal = asking.journal
        self._proxies = proxies
        self._seed = seed
        self._closed = closed
        self._keys = itertools.count()
        self._ended = asyncio.Event()

    def end(self) -> None:
        """Begin nothing new."""
        self._ended.set()

    async def work(self, number: int, ordinal: int) -> None:
        """Session after session at one proxy."""
        random = Random(f"{self._seed} {ordinal} {number}")
        async with openai.AsyncOpenAI(api_key="of each session", timeout=TIMEOUT) as client:
            while not self._ended.is_set():
                left = random.random() < LEFT_ALONE
                talk, address = await self.start(random, ordinal, left=left)
                alive = address is not None and await self._talk(talk, client.with_options(**address), random)
                talk.over = True
                if alive and not talk.left:
                    await self._end(talk, random)

    async def start(self, random: Random, ordinal: int, *, left: bool) -> tuple[Talk, dict[str, Any] | None]:
        """A session, its address and key; None where it is gone. Now and then it is started again, by any proxy."""
        start_key = self._start_key(ordinal)
        body = {"task_id": start_key, **({"stale_after": STALE_AFTER} if left else {})}
        first = await self._asking.until_told(START, ordinal, "/sessions", body, key=start_key)
        if left and first.status_code == GONE:
            # It was started, and went stale before any answer came through.
            return self._journal.started(start_key, session_in(first)), None
        if not first.is_success:
            raise Unexpected(f"start {start_key!r}: {first.status_code} {first.text}")
        started = first.json()
        talk = self._journal.started(start_key, started["session_id"])
        talk.left = left
        if random.random() < 0.4:
            other = random.randrange(self._proxies)
            reply = await self._asking.until_told(START, other, "/sessions", body, key=start_key)
            if reply.is_success:
                started = reply.json()
                self._journal.started(start_key, started["session_id"])
            elif left and reply.status_code == GONE:
                # The key of the first answer is void, too, if an answer to this start was lost before.
                return talk, None
            else:
                self._journal.contradict(f"start {start_key!r} again: {reply.text}")
        return talk, {"base_url": started["base_url"], "api_key": started["api_key"]}

    def _start_key(self, ordinal: int) -> str:
        """One that falls to that proxy."""
        names = (f"run {self._seed} start {number}" for number in self._keys)
        return next(name for name in names if keeper_of(name, self._proxies) == ordinal)

    async def _talk(self, talk: Talk, client: openai.AsyncOpenAI, random: Random) -> bool:
        """A conversation; returns whether the session is still there."""
        keyed = random.random() < 0.5
        client = client.with_options(max_retries=0 if keyed else RETRIES)
        messages: list[Any] = [{"role": "user", "content": f"{talk.session_id}: tell me something"}]
        for number in range(TURNS):
            if talk.left and number and random.random() < 0.2:
                await self._reward(talk, random)
            headers = {"Idempotency-Key": f"{talk.session_id} {number}"} if keyed else {}
            answer = await self._call(client, talk, messages, headers, stream=random.random() < 0.4)
            if answer is None:
                return False
            self._journal.answered(talk, answer)
            messages = [*messages, answer.message, {"role": "user", "content": f"And question {number}?"}]
        return True

    async def _call(
        self, client: openai.AsyncOpenAI, talk: Talk, messages: list[Any], headers: dict[str, str], *, stream: bool
    ) -> Answer | None:
        """What was answered; None where the session is gone stale meanwhile."""
        parent = talk.answers[-1].turn_id if talk.answers else None
        request = {"model": "simulated", "messages": messages, "max_tokens": MAX_TOKENS}
        call = streamed if stream else whole
        while True:
            with self._journal.asking(CALL, talk.ordinal):
                try:
                    return await call(client, request, headers, parent)
                except openai.APIStatusError as error:
                    if talk.left and error.status_code == GONE:
                        return None
                    if error.status_code not in (409, 429) and error.status_code < 500:
                        raise Unexpected(f"a call of {talk.session_id}: {error}") from None
                except (openai.APIError, httpx.TransportError):
                    pass
            self._journal.broke_off(CALL)
            await asyncio.sleep(AGAIN)

    async def _reward(self, talk: Talk, random: Random) -> bool:
        path = f"/sessions/{talk.session_id}/reward"
        key = f"{talk.session_id} {len(talk.answers)}"
        reward = {"reward": random.choice([-1.0, 0.5])}
        return (await self._asking.until_told(REWARD, talk.ordinal, path, reward, key=key)).is_success

    async def _end(self, talk: Talk, random: Random) -> None:
        if random.random() < 0.7 and not await self._reward(talk, random):
            self._journal.contradict(f"{talk.session_id} has turns, and took no reward")
        await self._asking.ask(CLOSE, talk.ordinal, f"/sessions/{talk.session_id}/close")
        self._closed(talk.session_id, talk.ordinal)


def session_in(refusal: httpx.Response) -> str:
    """The session that a 410 tells of."""
    found = SESSION.search(str(refusal.json()["error"]["message"]))
    if found is None:
        raise Unexpected(f"a refusal that names no session: {refusal.text}")
    return found[0]
