"""Agents and a trainer whom nothing stops, and what they were answered: the judge's evidence in `test_faults`.

Whatever a call ends with but an answer, it is made again under the same key, until it is answered or its session is
said to be reclaimed. Nothing is recorded but complete answers with a 2xx status.
"""

import asyncio
import contextlib
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import anyio
import httpx
from tests.fleets import ProxyProcess
from tests.waiting import PATIENCE

from rolloutfleet.errors import SESSION_RECLAIMED

AGAIN = 0.25
"""Seconds until a call that was not answered is made again."""
TURNS = 3
BATCH = 3
"""Sessions that the trainer takes at once."""
Json = Any


@dataclass(slots=True)
class Talk:
    """A session, as its agent saw it."""

    session_id: str
    api_key: str
    base_url: str
    answered: list[str] = field(default_factory=list)
    """Turns that it was given whole."""


class Crowd:
    """So many agents, each with one session after the other, and a trainer."""

    def __init__(self, proxy: ProxyProcess, *, seed: str, agents: int = 6) -> None:
        self.talks: list[Talk] = []
        self.acknowledged: set[str] = set()
        """Turns of trajectories whose acknowledgement was answered."""
        self.unanswered: Counter[str] = Counter()
        """What calls ended with that were made again: an error's code, or what broke."""
        self.left = 0
        """Calls that their callers left."""
        self.leaving = 0.05
        """The share of calls that are left."""
        self._proxy = proxy
        self._seed = seed
        self._agents = agents
        self._ended = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._closed: asyncio.Queue[Talk] = asyncio.Queue()

    @property
    def answers(self) -> int:
        return sum(len(talk.answered) for talk in self.talks)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All at work until the block ends; then agents end their sessions, and the trainer takes what they closed."""
        headers = {"authorization": f"Bearer {self._proxy.key}"}
        limits = httpx.Limits(max_connections=None)
        async with (
            httpx.AsyncClient(base_url=self._proxy.url, timeout=PATIENCE, limits=limits) as self._client,
            httpx.AsyncClient(base_url=self._proxy.url, timeout=PATIENCE, headers=headers) as self._admin,
            asyncio.TaskGroup() as tasks,
        ):
            agents = [tasks.create_task(self._agent(number)) for number in range(self._agents)]
            trainer = tasks.create_task(self._trainer())
            yield
            self._ended.set()
            await asyncio.gather(*agents)
            await self._closed.join()
            trainer.cancel()

    async def until_answered(self, more: int) -> None:
        """Return when so many more calls have been answered."""
        wanted = self.answers + more
        async with asyncio.timeout(PATIENCE):
            while self.answers < wanted:
                await asyncio.sleep(0.02)

    @contextlib.contextmanager
    def agents_held(self) -> Iterator[None]:
        """No agent begins a call until the block ends; the trainer goes on."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def _agent(self, number: int) -> None:
        random = Random(f"{self._seed} {number}")
        for count in itertools.count():
            if self._ended.is_set():
                return
            name = f"{self._seed} agent {number} session {count}"
            started = (await self._answered(self._admin, "/sessions", {"task_id": name}, key=name)).json()
            talk = Talk(*(started[field] for field in ("session_id", "api_key", "base_url")))
            self.talks.append(talk)
            if await self._talk(talk, random, name):
                await self._end(talk, random, name)

    async def _end(self, talk: Talk, random: Random, name: str) -> None:
        """Leave it open, score a part of it and leave it, or hand it to the trainer."""
        fate = random.random()
        path = f"/sessions/{talk.session_id}"
        if fate > 0.3:
            reply = await self._answered(self._admin, f"{path}/reward", {"reward": 1.0}, key=f"{name} scored")
            if reply.is_success and fate > 0.6 and (await self._answered(self._admin, f"{path}/close")).is_success:
                self._closed.put_nowait(talk)
            elif reply.is_success:
                await self._turn(talk, [{"role": "user", "content": f"{name}: and then?"}], random, f"{name} rest")

    async def _talk(self, talk: Talk, random: Random, name: str) -> bool:
        """A conversation; returns whether the session is still there."""
        messages: list[Json] = [{"role": "user", "content": f"{name}: tell me something"}]
        for number in range(TURNS):
            if random.random() < self.leaving:
                await self._leave(talk, messages, random)
            said = await self._turn(talk, messages, random, f"{name} turn {number}")
            if said is None:
                return False
            messages = [*messages, {"role": "assistant", "content": said}, {"role": "user", "content": "And then?"}]
        return True

    async def _turn(self, talk: Talk, messages: list[Json], random: Random, key: str) -> str | None:
        """What was said, or None where the session is reclaimed."""
        stream = random.random() < 0.5
        path = f"{talk.base_url}/chat/completions"
        body = {"messages": messages, "max_tokens": 20, "stream": stream}
        reply = await self._answered(self._client, path, body, key=key, bearer=talk.api_key)
        if not reply.is_success:
            return None
        turn, said = _streamed(reply.text) if stream else _whole(reply.json())
        talk.answered.append(turn)
        return said

    async def _leave(self, talk: Talk, messages: list[Json], random: Random) -> None:
        body = {"messages": messages, "max_tokens": 20, "stream": random.random() < 0.5}
        headers = {"authorization": f"Bearer {talk.api_key}"}
        # httpx closes what a dead proxy left of its connections under a shield that only a scope of anyio's heeds:
        # a task that asyncio cancels in between leaves the rest of them open.
        with contextlib.suppress(httpx.TransportError), anyio.move_on_after(random.uniform(0.001, 0.1)):
            await self._client.post(f"{talk.base_url}/chat/completions", json=body, headers=headers)
        self.left += 1

    async def _trainer(self) -> None:
        for number in itertools.count():
            talks = [await self._closed.get()]
            while len(talks) < BATCH and not self._closed.empty():
                talks.append(self._closed.get_nowait())
            asked = {"session_ids": [talk.session_id for talk in talks]}
            key = f"{self._seed} export {number}"
            exported = (await self._answered(self._admin, "/export", asked, key=key)).json()
            assert {session["status"] for session in exported["sessions"]} == {"leased"}
            ack = await self._answered(self._admin, f"/leases/{exported['lease_id']}/ack", {})
            assert ack.is_success, ack.text
            taken = set(ack.json()["acknowledged"])
            self.acknowledged.update(
                turn["turn_id"]
                for trajectory in exported["trajectories"]
                if trajectory["trajectory_id"] in taken
                for turn in trajectory["turns"]
            )
            for _ in talks:
                self._closed.task_done()

    async def _answered(
        self, client: httpx.AsyncClient, path: str, body: Json = None, *, key: str = "", bearer: str = ""
    ) -> httpx.Response:
        """A success, or that the session is reclaimed. Anything else is asked again, under its key."""
        headers = {
            **({"idempotency-key": key} if key else {}),
            **({"authorization": f"Bearer {bearer}"} if bearer else {}),
        }
        while True:
            if bearer:
                await self._open.wait()
            try:
                reply = await client.post(path, json=body, headers=headers)
            except httpx.TransportError as error:
                self.unanswered[type(error).__name__] += 1
                await asyncio.sleep(AGAIN)
                continue
            code = _error_code(reply)
            if code is None or code == SESSION_RECLAIMED:
                return reply
            assert reply.status_code in (429, 502, 503, 504, 507) or reply.is_success, reply.text
            self.unanswered[code] += 1
            await asyncio.sleep(AGAIN)


def _error_code(reply: httpx.Response) -> str | None:
    """That of an error, also of one that ends a stream."""
    if not reply.is_success:
        return str(reply.json()["error"]["code"])
    if reply.headers["content-type"].startswith("text/event-stream"):
        *_, last = (line for line in reply.text.splitlines() if line.startswith("data: "))
        if last != "data: [DONE]":
            return str(json.loads(last.removeprefix("data: "))["error"]["code"])
    return None


def _whole(reply: Json) -> tuple[str, str]:
    return reply["id"], reply["choices"][0]["message"]["content"] or ""


def _streamed(text: str) -> tuple[str, str]:
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    choices = [choice for event in events for choice in event["choices"]]
    assert choices[-1]["finish_reason"] is not None
    return events[0]["id"], "".join(choice["delta"].get("content") or "" for choice in choices)
