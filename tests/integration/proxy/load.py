"""Agents and a trainer that go on through every death of a proxy, and their own record of what they were answered.

The record is the judge's evidence: nothing in it comes from the proxy's store, and nothing is added to it but by a
complete answer with a 2xx status (for a stream: one whose finish reason was seen).
"""

import asyncio
import contextlib
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import httpx
import openai
from tests.fleets import AgentSession, ProxyProcess
from tests.integration.proxy.answers import Answer, streamed, whole
from tests.waiting import PATIENCE, eventually

TURNS = 5
"""Turns of a session before the agent starts another."""
MAX_TOKENS = 80
TIMEOUT = 50
"""Retries of the SDK: enough to outlive any restart here."""

TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "look_up",
            "description": "Look a city up",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]

_BROKEN = (openai.APIConnectionError, httpx.TransportError)
"""What a call ends with when the proxy dies under it."""

Json = Any


@dataclass(slots=True)
class Conversation:
    """A session, as its agent saw it."""

    session: AgentSession
    exactly_once: bool
    """Each call was made so that a lost answer's turn is found again: there is a turn for each answer, and no other."""
    answers: list[Answer] = field(default_factory=list)
    reward: float | None = None
    closed: bool = False
    exported: list[Json] | None = None
    """Its trajectories, once the trainer has them."""
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """How an agent calls."""

    stream: bool
    keyed: bool
    """It sends an Idempotency-Key and asks again by itself; else the SDK does, with its own marker."""
    tools: bool

    @property
    def exactly_once(self) -> bool:
        # An SDK gives a stream up once it has begun: the agent then asks anew, which is a new turn.
        return self.keyed or not self.stream


WAYS = [Way(*flags) for flags in itertools.product((False, True), repeat=3)]


class Load:
    """Agents and one trainer at work on a proxy, which may die at any moment."""

    def __init__(
        self,
        proxy: ProxyProcess,
        *,
        seed: int,
        instructions: str = "You are a careful assistant.",
        ways: Sequence[Way] = WAYS,
        retries: int = TIMEOUT,
    ) -> None:
        """One agent for each of `ways`; an SDK asks again up to `retries` times."""
        self.conversations: list[Conversation] = []
        self.interrupted: Counter[str] = Counter()
        """Calls that broke off without an answer, by what they were for."""
        self._proxy = proxy
        self._seed = seed
        self._instructions = instructions
        self._ways = ways
        self._retries = retries
        self._ended = asyncio.Event()
        self._open = asyncio.Event()
        self._open.set()
        self._closed: asyncio.Queue[Conversation] = asyncio.Queue()
        self._admin = httpx.AsyncClient(
            base_url=proxy.url, headers={"authorization": f"Bearer {proxy.key}"}, timeout=PATIENCE
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """All at work until the block ends; then each agent ends the call that it is in. Raises what they raised."""
        async with self._admin, asyncio.TaskGroup() as tasks:
            agents = [tasks.create_task(self._agent(number, way)) for number, way in enumerate(self._ways)]
            trainer = tasks.create_task(self._trainer())
            yield
            self._ended.set()
            await asyncio.gather(*agents)
            await self._closed.join()
            trainer.cancel()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody begins a call until the block ends; an SDK's own retries go on."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    @property
    def answers(self) -> int:
        return sum(len(conversation.answers) for conversation in self.conversations)

    async def _agent(self, number: int, way: Way) -> None:
        random = Random(f"{self._seed} {number}")
        for session in itertools.count():
            if self._ended.is_set():
                return
            name = f"load {self._seed} agent {number} session {session}"
            conversation = await self._start(name, way)
            self.conversations.append(conversation)
            await self._talk(conversation, way, random, name)
            if not conversation.answers:
                continue
            await self._reward(conversation, random.choice([-1.0, 0.5, 1.0]), name)
            if random.random() < 0.5:
                await self._close(conversation)
                self._closed.put_nowait(conversation)

    async def _talk(self, conversation: Conversation, way: Way, random: Random, name: str) -> None:
        session = conversation.session
        client = session.async_client(max_retries=0 if way.keyed else self._retries)
        messages: list[Any] = [
            {"role": "system", "content": self._instructions},
            {"role": "user", "content": f"{name}: what is the weather in Paris?"},
        ]
        async with client:
            for number in range(TURNS):
                if number and self._ended.is_set():
                    return
                request = {
                    "model": "simulated",
                    "messages": messages,
                    "max_tokens": MAX_TOKENS,
                    "logprobs": random.random() < 0.5,
                    **({"tools": TOOLS} if way.tools else {}),
                }
                headers = {"Idempotency-Key": f"{name} turn {number}"} if way.keyed else {}
                last = conversation.answers[-1].turn_id if conversation.answers else None
                answer = await self._ask(client, request, headers, way, last)
                conversation.answers.append(answer)
                messages = [*messages, answer.message, *_what_follows(answer.message, number)]

    async def _ask(
        self, client: openai.AsyncOpenAI, request: dict[str, Any], headers: dict[str, str], way: Way, last: str | None
    ) -> Answer:
        ask = streamed if way.stream else whole
        while True:
            await self._open.wait()
            try:
                return await ask(client, request, headers, last)
            except _BROKEN as error:
                # The SDK brings an HTTP client of its own, whose classes are not ours to import.
                if type(error.__cause__ or error).__name__ != "ConnectError":
                    self.interrupted["stream" if way.stream else "chat"] += 1
                await eventually(self._proxy.is_ready)

    async def _start(self, name: str, way: Way) -> Conversation:
        reply = await self._until_answered("start", "/sessions", {"task_id": name}, key=name)
        assert reply.status_code == 201, reply.text
        started = {field: reply.json()[field] for field in ("session_id", "api_key", "base_url")}
        return Conversation(AgentSession(self._proxy, **started), way.exactly_once)

    async def _reward(self, conversation: Conversation, reward: float, name: str) -> None:
        path = f"/sessions/{conversation.session.session_id}/reward"
        reply = await self._until_answered("reward", path, {"reward": reward}, key=name)
        assert reply.status_code == 200, reply.text
        assert reply.json()["turn_id"] == conversation.answers[-1].turn_id
        conversation.reward = reward

    async def _close(self, conversation: Conversation) -> None:
        reply = await self._until_answered("close", f"/sessions/{conversation.session.session_id}/close", None)
        assert reply.status_code == 200, reply.text
        conversation.closed = True

    async def _trainer(self) -> None:
        """Takes each closed session once: exports it, now and then asks for the same again, and acknowledges."""
        random = Random(f"{self._seed} trainer")
        while True:
            conversation = await self._closed.get()
            name = conversation.session.session_id
            exported = await self._export(name)
            if random.random() < 0.3:
                again = await self._export(name)
                assert again["lease_id"] == exported["lease_id"]
                assert again["trajectories"] == exported["trajectories"]
            conversation.exported = exported["trajectories"]
            reply = await self._until_answered("ack", f"/leases/{exported['lease_id']}/ack", {})
            assert reply.status_code == 200, reply.text
            conversation.acknowledged = True
            self._closed.task_done()

    async def _export(self, name: str) -> Json:
        reply = await self._until_answered("export", "/export", {"session_ids": [name]}, key=name)
        assert reply.status_code == 200, reply.text
        assert [session["status"] for session in reply.json()["sessions"]] == ["leased"]
        return reply.json()

    async def _until_answered(self, what: str, path: str, body: Json, key: str | None = None) -> httpx.Response:
        headers = {} if key is None else {"Idempotency-Key": key}
        while True:
            await self._open.wait()
            try:
                reply = await self._admin.post(path, json=body, headers=headers)
                if not _is_draining(reply):
                    return reply
            except httpx.TransportError as error:
                if not isinstance(error, httpx.ConnectError):
                    self.interrupted[what] += 1
            await eventually(self._proxy.is_ready)


def _is_draining(reply: httpx.Response) -> bool:
    return reply.status_code == 503 and reply.json()["error"]["code"] == "draining"


def _what_follows(message: dict[str, Any], number: int) -> list[dict[str, Any]]:
    calls = message.get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"Sunny, {number} degrees."} for call in calls]
    return results or [{"role": "user", "content": f"And question {number}?"}]
