"""An answer that reached nobody is given to a caller that asks the same again, though it does not say that it does.

Claude Code and Codex ask again without a mark. What tells the proxy is what became of the answers before: whose callers
had gone, and whose last byte never left to an open connection.
"""

import asyncio
import contextlib
import socket
import sqlite3
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.integration.proxy.calls import RETRY, asking, leave_early, sent
from tests.integration.proxy.dialect_calls import PATHS, assembled, post
from tests.unit.proxy.dialects.conversations import MESSAGES, RESPONSES
from tests.waiting import PATIENCE, eventually

from rolloutfleet_proxy.dialects.base import Dialect
from rolloutfleet_proxy.domain.turn import Delivery
from rolloutfleet_proxy.failpoints import ANY, BEFORE_ANSWER, HELD, VARIABLE

BODY: dict[str, Any] = {"messages": [{"role": "user", "content": "Tell me something"}], "max_tokens": 60}
LARGE = {**BODY, "max_tokens": 4_000, "ignore_eos": True, "logprobs": True, "top_logprobs": 20}
"""More than the system holds for a client that reads nothing."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a file of a failpoint's name holds the proxies there."""
    return tmp_path_factory.mktemp("places")


@pytest.fixture(scope="module")
def two(folder: Path, tmp_path_factory: pytest.TempPathFactory, shared: Fleet) -> Iterator[Fleet]:
    waiting = {VARIABLE: f"{ANY}@{folder}"}
    with running_fleet(tmp_path_factory.mktemp("two"), beside=shared, proxies=2, environment=waiting) as running:
        yield running


@pytest.fixture
def proxy(two: Fleet) -> ProxyProcess:
    return two.proxy


@pytest.fixture
def session(proxy: ProxyProcess) -> AgentSession:
    return proxy.start_session(here=True)


def in_flight(session: AgentSession, number: int) -> bool:
    return bool(session.show()["in_flight"] == number)


def ids(*replies: Any) -> list[str]:
    return [reply.json()["id"] for reply in replies]


def named(turns: list[Any]) -> list[str]:
    return [turn["turn_id"] for turn in turns]


def noted(session: AgentSession) -> list[int]:
    """What the rows of its turns say of their answers, which is written with whatever is written next."""
    session.post("touch").raise_for_status()
    with contextlib.closing(sqlite3.connect(session.proxy.store_file)) as store:
        rows = store.execute(
            "SELECT delivered FROM turns WHERE session = (SELECT id FROM sessions WHERE name = ?) ORDER BY number",
            (session.session_id,),
        )
        return [row[0] for row in rows]


async def committed(session: AgentSession, number: int = 1) -> None:
    await eventually(lambda: len(session.turns()) == number and session.show()["in_flight"] == 0)


def reset_at_its_end(connection: socket.socket) -> None:
    """As the system does for a process that was killed with something unread."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def is_left(proxy: ProxyProcess) -> bool:
    """Whether a connection to it has been closed by the other side, which it has not noticed yet."""
    found = psutil.net_connections("tcp4")
    return any(each.status == psutil.CONN_CLOSE_WAIT and each.laddr[1:] == (proxy.port,) for each in found)


def unread(proxy: ProxyProcess) -> socket.socket:
    """A connection that takes next to nothing."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.settimeout(60)
    connection.connect(("127.0.0.1", proxy.port))
    return connection


@pytest.mark.parametrize("again", [False, True], ids=["whole again", "streamed again"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
async def test_a_request_like_one_whose_caller_has_gone_joins_its_call(
    two: Fleet, session: AgentSession, stream: bool, again: bool
) -> None:
    two.engine.fault("slow", seconds=4)
    before = sent(two)
    await leave_early(two, session, {**BODY, "stream": stream})
    reply = await asyncio.to_thread(session.raw_chat, {**BODY, "stream": again})
    assert reply.status_code == 200
    (turn,) = session.turns()
    assert turn["turn_id"] in reply.text and sent(two) == before + 1


@pytest.mark.parametrize("dialect", [MESSAGES, RESPONSES], ids=lambda dialect: dialect.name)
async def test_a_stream_that_joins_a_call_asked_for_whole_is_kept_alive(
    two: Fleet, session: AgentSession, dialect: Dialect[Any]
) -> None:
    two.engine.fault("slow", seconds=5)
    body = {"max_tokens": 60, "messages": BODY["messages"]} if dialect is MESSAGES else {"input": BODY["messages"]}
    await leave_early(two, session, body, path=PATHS[dialect.name])
    streamed = await asyncio.to_thread(post, session, dialect, body, stream=True)
    kinds = [line.removeprefix("event: ") for line in streamed.text.splitlines() if line.startswith("event: ")]
    opening, silence = {
        MESSAGES.name: (["message_start"], "ping"),
        RESPONSES.name: (["response.created", "response.in_progress"], "response.in_progress"),
    }[dialect.name]
    assert kinds[: len(opening)] == opening and silence in kinds[len(opening) : 4]
    assert kinds.count(opening[0]) == 1
    (turn,) = session.turns()
    assert turn["turn_id"] in streamed.text
    again = await asyncio.to_thread(post, session, dialect, body, stream=False, **RETRY)
    assert assembled(dialect, streamed.content) == again.json()


async def test_each_call_that_lost_its_caller_serves_one_request(two: Fleet, session: AgentSession) -> None:
    for _ in range(2):
        two.engine.fault("slow", seconds=3)
    calls = [socket.create_connection(("127.0.0.1", two.proxy.port), timeout=PATIENCE) for _ in range(2)]
    for call in calls:
        before = session.show()["in_flight"]
        call.sendall(asking(session, BODY))
        await eventually(partial(in_flight, session, before + 1))
    for call in calls:
        call.close()
    replies = await asyncio.gather(*(asyncio.to_thread(session.raw_chat, BODY) for _ in range(3)))
    assert sorted(ids(*replies)) == sorted(named(session.turns())) and len(set(ids(*replies))) == 3


async def test_an_answer_that_nobody_waited_for_is_given_once(two: Fleet, session: AgentSession) -> None:
    two.engine.fault("slow", seconds=4)
    await leave_early(two, session, {**BODY, "stream": True})
    await committed(session)
    again, after = session.raw_chat(BODY), session.raw_chat(BODY)
    assert ids(again, after) == named(session.turns())


async def test_while_callers_wait_and_once_they_have_it_equal_requests_are_turns_of_their_own(
    two: Fleet, session: AgentSession
) -> None:
    for _ in range(3):
        two.engine.fault("slow", seconds=1)
    replies = await asyncio.gather(*(asyncio.to_thread(session.raw_chat, BODY) for _ in range(3)))
    last = await asyncio.to_thread(session.raw_chat, BODY)
    assert len(set(ids(*replies, last))) == 4 == len(session.turns())


async def test_what_is_sampled_otherwise_is_no_retry(two: Fleet, session: AgentSession) -> None:
    two.engine.fault("slow", seconds=4)
    await leave_early(two, session, BODY)
    await committed(session)
    session.raw_chat({**BODY, "max_tokens": 61})
    assert len(session.turns()) == 2


async def test_a_lost_answer_of_a_closed_trajectory_is_not_given_again(two: Fleet, session: AgentSession) -> None:
    two.engine.fault("slow", seconds=4)
    await leave_early(two, session, BODY)
    await committed(session)
    session.post("reward", {"reward": 1.0}).raise_for_status()
    assert ids(session.raw_chat(BODY)) == named(session.turns())[1:]


@pytest.mark.parametrize("owner", [0, 1], ids=["owner", "passed on"])
async def test_an_answer_whose_last_byte_never_left_is_given_again(two: Fleet, owner: int) -> None:
    session = two.proxies[owner].start_session(here=True)
    with unread(two.proxy) as connection:
        connection.sendall(asking(session, LARGE))
        await committed(session)
        # Its caller still waits.
        assert ids(session.raw_chat(LARGE)) == named(session.turns())[1:]
        reset_at_its_end(connection)
    await eventually(lambda: noted(session)[0] == Delivery.LOST)
    assert ids(session.raw_chat(LARGE)) == named(session.turns())[:1]
    assert len(session.turns()) == 2


@pytest.mark.parametrize("owner", [0, 1], ids=["owner", "passed on"])
async def test_a_caller_that_goes_between_commit_and_answer_finds_its_turn(
    two: Fleet, folder: Path, owner: int
) -> None:
    session = two.proxies[owner].start_session(here=True)
    address = ("127.0.0.1", two.proxy.port)
    place = folder / BEFORE_ANSWER
    before = sent(two)
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        place.touch()
        connection.sendall(asking(session, {**BODY, "stream": True}))
        held = place.with_name(place.name + HELD)
        await eventually(held.exists)
    await eventually(partial(is_left, two.proxies[owner]))
    with socket.create_connection(address, timeout=PATIENCE) as again:
        again.sendall(asking(session, BODY))
        held.unlink()
        place.unlink()
        assert (await asyncio.to_thread(again.recv, 4096)).startswith(b"HTTP/1.1 200 ")
    assert len(session.turns()) == 1 and sent(two) == before + 1


async def test_a_proxy_that_is_killed_before_its_answer_gives_it_to_who_asks_again(
    two: Fleet, folder: Path, session: AgentSession
) -> None:
    place = folder / BEFORE_ANSWER
    place.touch()
    call = asyncio.create_task(asyncio.to_thread(session.raw_chat, {**BODY, "stream": True}))
    held = place.with_name(place.name + HELD)
    await eventually(held.exists)
    two.proxy.kill()
    with contextlib.suppress(Exception):
        await call
    held.unlink()
    place.unlink()
    two.proxy.start()
    again, after = session.raw_chat(BODY), session.raw_chat(BODY)
    assert ids(again, after) == named(session.turns())


async def test_a_restart_knows_which_answers_arrived(two: Fleet, session: AgentSession) -> None:
    arrived = session.raw_chat(BODY)
    two.engine.fault("slow", seconds=4)
    await leave_early(two, session, {**BODY, "seed": 7})
    await committed(session, 2)
    two.proxy.stop()
    two.proxy.start()
    after, lost = session.raw_chat(BODY), session.raw_chat({**BODY, "seed": 7})
    assert ids(arrived, lost, after) == named(session.turns())


async def test_samples_that_arrived_before_a_kill_are_exported_all(two: Fleet, session: AgentSession) -> None:
    """Nothing says on disk that they did: what a crash forgets makes no orphan."""
    replies = await asyncio.gather(*(asyncio.to_thread(session.raw_chat, BODY) for _ in range(3)))
    two.proxy.kill()
    two.proxy.start()
    session.post("close").raise_for_status()
    with two.proxy.admin() as admin:
        asked = {"session_ids": [session.session_id], "style": "individual"}
        [trajectory] = admin.post("/export", json=asked, headers={"accept": "application/json"}).json()["trajectories"]
    assert sorted(turn["turn_id"] for turn in trajectory["turns"]) == sorted(ids(*replies))
    assert two.proxy.audit()["balanced"]
