"""What a turn costs the proxy in each dialect, on recorded conversations, beside chat completions of the same prompts.

A conversation that Claude Code or Codex had (`benchmarks.conversations`) is sent as it was, to the dialect that the
program speaks; and, made of what that dialect reads in it, to chat completions: the same system prompt, tools and
messages. The engine says what the program was told, so that each turn extends the one before, and both are streamed.
Both go by turns, in sessions that advance together. That their prompts have the same ids is checked in the store.
"""

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import pairwise
from typing import Any, Final

import aiohttp
import msgspec

from benchmarks.conversations import recorded
from benchmarks.rigs import accounts
from benchmarks.rigs.bench import Bench, bench, say
from benchmarks.rigs.figures import Figure, Outcome, at_most, exactly, figure
from benchmarks.rigs.load import Answers
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import MODEL, Proxy
from rolloutfleet_proxy.dialects.base import Reading, TurnRequest
from rolloutfleet_proxy.dialects.registry import DIALECTS
from rolloutfleet_proxy.store.database import FILE

CONVERSATIONS: Final = ("claude_code", "codex")
CONTEXT: Final = 200_000
TOKEN_SECONDS: Final = 0.005
GOAL: Final = 1.15
LAST: Final = "All of it was read."
"""What is said to the last request: what the program was told then, no later one shows."""
ENDS: Final = (b"data: [DONE]", b"event: message_stop", b"event: response.completed")
"""Of which one stands in each stream that ended well."""

_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """One conversation, as it is sent by one dialect."""

    path: str
    headers: Mapping[str, str]
    bodies: Sequence[bytes]


@dataclass(frozen=True, kw_only=True, slots=True)
class Spoken:
    """A conversation, and the texts of the model's answers."""

    name: str
    own: Way
    chat: Way
    said: Sequence[str]


@dataclass(frozen=True, slots=True)
class Pass:
    """The same conversation in some new sessions at once. CPU of the proxy a turn, in microseconds."""

    conversation: str
    dialect: str
    sessions: Sequence[str]
    cpu: float
    failed: int


def dialects(plan: Plan) -> Outcome:
    """CPU a turn of the Anthropic Messages API and of the Responses API ÷ that of chat completions."""
    spoken = [speak(name, turns=plan.dialect_turns) for name in CONVERSATIONS]
    with replies_of(plan, spoken) as on:
        proxy = on.proxy()
        send = partial(run, on, proxy, spoken)
        # What is slow only once is over then.
        warm_up = [send(each, dialect, sessions=1) for each in spoken for dialect in ("own", "chat")]
        passes = [
            send(each, dialect, sessions=plan.dialect_sessions)
            for number in range(plan.pairs)
            for each in spoken
            for dialect in (("own", "chat") if number % 2 else ("chat", "own"))
        ]
        with contextlib.closing(sqlite3.connect(proxy.state_dir / "store" / FILE)) as store:
            ids = partial(_ids, store)
            figures = [figure for each in spoken for figure in _figures(each.name, passes, ids)]
        figures += accounts.checks(proxy, [_answers([*warm_up, *passes], plan)], label="dialects")
    runs = [{**asdict(each), "sessions": len(each.sessions)} for each in passes]
    return Outcome(figures=figures, runs=runs, commands=on.commands)


def _answers(passes: Sequence[Pass], plan: Plan) -> Answers:
    sessions, failed = sum(len(each.sessions) for each in passes), sum(each.failed for each in passes)
    answers = sessions * plan.dialect_turns - failed
    return Answers(sessions=sessions, answers=answers, first_turns=sessions, errors={"failed": failed})


def replies_of(plan: Plan, spoken: Sequence[Spoken]) -> contextlib.AbstractContextManager[Bench]:
    """A bench whose engine can say all answers."""
    return bench(plan, context=CONTEXT, said=[text for each in spoken for text in each.said])


@cache
def speak(name: str, *, turns: int) -> Spoken:
    """The first turns of a recorded conversation."""
    conversation = recorded.read(name)
    read = next(each for each in DIALECTS if each.name == conversation.dialect).read
    bodies = [_encode({**body, "model": MODEL}) for body in list(conversation.bodies())[:turns]]
    requests = [read(body, Reading()) for body in bodies]
    said = [_text(_answer(*pair)) for pair in pairwise(requests)]
    return Spoken(
        name=name,
        own=Way(path=conversation.path, headers=conversation.headers, bodies=bodies),
        chat=Way(
            path="/v1/chat/completions",
            headers={"content-type": "application/json"},
            bodies=[_encode(_as_chat(request)) for request in requests],
        ),
        said=[*said, LAST],
    )


def _as_chat(request: TurnRequest) -> dict[str, Any]:
    limit = {} if request.max_tokens is None else {"max_completion_tokens": request.max_tokens}
    return {
        "model": request.model,
        "messages": request.messages,
        "tools": request.template.tools,
        "stream": True,
        "stream_options": {"include_usage": True},
        **limit,
        **request.sampling,
    }


def _answer(request: TurnRequest, following: TurnRequest) -> dict[str, Any]:
    """What the model said to a request, as the one after it has it."""
    known = len(request.messages)
    assert following.messages[:known] == request.messages, "the conversation does not go on"
    return following.messages[known]


def _text(message: Mapping[str, Any]) -> str:
    """As the model writes it."""
    thought = f"<think>\n{message['reasoning_content']}\n</think>\n\n" if message.get("reasoning_content") else ""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    written = [f'{{"name": {json.dumps(call["name"])}, "arguments": {call["arguments"]}}}' for call in calls]
    called = [f"<tool_call>\n{call}\n</tool_call>" for call in written]
    return thought + "\n".join(filter(None, (message["content"], *called)))


def run(on: Bench, proxy: Proxy, spoken: Sequence[Spoken], each: Spoken, dialect: str, *, sessions: int) -> Pass:
    """Send a conversation whole, in so many new sessions; `spoken` are all that the engine has answers to."""
    on.gateway.wait_until_ready()
    on.stub.set_token_latency(TOKEN_SECONDS)
    way = each.own if dialect == "own" else each.chat
    first = sum(len(other.said) for other in spoken[: spoken.index(each)])
    converse = _converse(proxy, way, sessions, lambda turn: on.stub.set_variant(first + turn))
    named, cpu, failed = asyncio.run(converse)
    micros = 1e6 * cpu / (sessions * len(way.bodies))
    say(f"  {each.name}, {way.path}: {micros:.0f} µs of CPU a turn, errors {failed}")
    return Pass(conversation=each.name, dialect=dialect, sessions=named, cpu=micros, failed=failed)


async def _converse(
    proxy: Proxy, way: Way, sessions: int, begin: Callable[[int], None]
) -> tuple[list[str], float, int]:
    """The sessions, CPU seconds of the proxy for their turns, and how many calls failed."""
    key = proxy.admin_key_file.read_text().strip()
    failed = 0
    async with aiohttp.ClientSession(headers=way.headers, raise_for_status=False) as client:
        opened = [await _open(client, proxy.url, key) for _ in range(sessions)]
        before = proxy.cpu_seconds()
        for turn, body in enumerate(way.bodies):
            begin(turn)
            ended = await asyncio.gather(*(_turn(client, session, way.path, body) for session in opened))
            failed += ended.count(False)
        return [session["session_id"] for session in opened], proxy.cpu_seconds() - before, failed


async def _open(client: aiohttp.ClientSession, url: str, key: str) -> dict[str, Any]:
    async with client.post(f"{url}/sessions", json={}, headers={"authorization": f"Bearer {key}"}) as answer:
        answer.raise_for_status()
        session: dict[str, Any] = await answer.json()
        return session


async def _turn(client: aiohttp.ClientSession, session: Mapping[str, Any], path: str, body: bytes) -> bool:
    """Whether it ended well."""
    url = session["base_url"].removesuffix("/v1") + path
    async with client.post(url, data=body, headers={"authorization": f"Bearer {session['api_key']}"}) as answer:
        data = await answer.read()
        return answer.status == 200 and any(end in data for end in ENDS)


Ids = Callable[[str], list[tuple[int, int | None, bytes, bytes]]]


def _figures(name: str, passes: Sequence[Pass], ids: Ids) -> list[Figure]:
    own, chat = (
        [each for each in passes if each.conversation == name and each.dialect == dialect]
        for dialect in ("own", "chat")
    )
    expected = ids(chat[0].sessions[0])
    others = [ids(session) for each in (*own, *chat) for session in each.sessions]
    differ = sum(theirs != ours for those in others for theirs, ours in zip(those, expected, strict=False))
    differ += sum(abs(len(those) - len(expected)) for those in others)
    return [
        figure(f"{name}_cpu_vs_chat", "ratio", _ratios(own, chat), goal=at_most(GOAL)),
        figure(f"{name}_cpu_per_turn", "us", [each.cpu for each in own]),
        figure(f"{name}_as_chat_cpu_per_turn", "us", [each.cpu for each in chat]),
        figure(f"{name}_prompts_differ", "turns", [differ], goal=exactly(0), check=True),
    ]


def _ratios(own: Sequence[Pass], chat: Sequence[Pass]) -> list[float]:
    return [one.cpu / other.cpu for one, other in zip(own, chat, strict=True)]


def _ids(store: sqlite3.Connection, session: str) -> list[tuple[int, int | None, bytes, bytes]]:
    """Of each turn: its number, its parent's, its prompt's ids from there on, and its own."""
    rows = store.execute(
        "SELECT number, parent, prompt_ids, output_ids FROM turns"
        " WHERE session = (SELECT id FROM sessions WHERE name = ?) ORDER BY number",
        (session,),
    )
    return rows.fetchall()
