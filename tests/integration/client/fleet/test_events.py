"""Turns come as they are committed, from every proxy, whatever restarts meanwhile; `rolloutfleet tail` shows them."""

import asyncio
import json
import signal
import subprocess
import threading
from collections.abc import Sequence
from queue import Empty, Queue

import pytest
from tests.commands import CLI
from tests.fleets import Fleet, ProxyProcess
from tests.integration.client.fleet.agents import Handle, talk
from tests.integration.client.fleet.by_turns import check_halves, sessions_by_turns, starts_by_turns
from tests.integration.client.fleet.conftest import key_file
from tests.waiting import PATIENCE, until

from rolloutfleet.fleet import AsyncFleet, Refused, Whereabouts
from rolloutfleet.fleet import Fleet as Trainer


def restart(proxy: ProxyProcess) -> None:
    before = proxy.workers_begun()
    assert proxy.drain(f"again-{before}", then="restart").status_code == 200
    until(lambda: proxy.workers_begun() > before)


def test_turns_of_all_proxies_come_once_each_also_across_a_restart(fleet: Trainer, pair: Fleet) -> None:
    with fleet.events() as events, starts_by_turns():
        sessions = [session for _ in range(2) for session in fleet.start_group(2)]
        check_halves(sessions)
        asyncio.run(_talk_all(sessions, turns=2))
        restart(pair.proxies[0])
        asyncio.run(_talk_all(sessions, turns=1))
        told = [next(events) for _ in range(12)]
    turns = {turn.turn_id: turn for session in sessions for turn in fleet.turns(session)}
    assert len(turns) == 12
    commits = [event.commit for event in told if event.commit is not None]
    assert {commit.turn_id for commit in commits} == set(turns)
    assert all(commit.parent_id == turns[commit.turn_id].parent_id for commit in commits)
    assert all(event.commit and event.commit.session_id.startswith(f"s{event.ordinal}-") for event in told)
    fleet.delete(sessions[0])


async def _talk_all(sessions: Sequence[Handle], *, turns: int) -> None:
    await asyncio.gather(*(talk(session, turns=turns) for session in sessions))


async def test_one_for_whom_there_is_no_place_is_told_so(pair: Fleet, where: Whereabouts) -> None:
    async with AsyncFleet(where, progress=False) as fleet:
        followers = [fleet.events() for _ in range(8)]
        for each in followers:
            await each.__aenter__()
        try:
            async with fleet.events() as ninth:
                with pytest.raises(Refused) as refused:
                    async with asyncio.timeout(PATIENCE):
                        await anext(ninth)
            assert refused.value.code == "too_many_viewers"
        finally:
            for each in followers:
                await each.__aexit__(None, None, None)
        # That they left is seen when the next turns are told.
        await _talk_all(await sessions_by_turns(fleet, 2), turns=2)


def test_tail_shows_turns_across_a_restart_and_ctrl_c_ends_it(fleet: Trainer, pair: Fleet) -> None:
    session = fleet.start_session()
    owner = next(proxy for proxy in pair.proxies if proxy.url in session.base_url)
    command = (*CLI, "tail", "--json", "--url", pair.proxy.url, "--admin-key-file", str(key_file(pair)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as tail:
        lines: Queue[str] = Queue()
        reading = threading.Thread(target=_read, args=(tail, lines))
        reading.start()
        try:
            first = _until_it_follows(session, lines)
            assert json.loads(first)["session_id"] == session.session_id
            restart(owner)
            (turn,) = asyncio.run(talk(session))
            while json.loads(lines.get(timeout=PATIENCE))["turn_id"] != turn:
                pass
            tail.send_signal(signal.SIGINT)
            assert tail.wait(PATIENCE) == 130
        finally:
            tail.kill()
            reading.join()
        assert tail.stderr is not None and "Traceback" not in tail.stderr.read()


def _read(tail: "subprocess.Popen[str]", lines: "Queue[str]") -> None:
    for line in tail.stdout or ():
        lines.put(line)


def _until_it_follows(session: object, lines: "Queue[str]") -> str:
    """Its first line: it takes a while to start, so there are turns until then."""
    for _ in range(600):
        asyncio.run(talk(session))  # type: ignore[arg-type]
        try:
            return lines.get(timeout=0.2)
        except Empty:
            continue
    raise AssertionError("it shows nothing")


def test_a_line_of_tail_says_what_happened(fleet: Trainer, pair: Fleet) -> None:
    session = fleet.start_session()
    command = (*CLI, "tail", "--url", pair.proxy.url, "--admin-key-file", str(key_file(pair)))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as tail:
        lines: Queue[str] = Queue()
        reading = threading.Thread(target=_read, args=(tail, lines))
        reading.start()
        try:
            line = _until_it_follows(session, lines)
        finally:
            tail.send_signal(signal.SIGINT)
            tail.wait(PATIENCE)
            reading.join()
    assert session.session_id in line and "turn " in line and " tokens" in line
