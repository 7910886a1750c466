"""A proxy whose disk has changed what was written to it: nobody gets that, and somebody is told."""

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, ProxyProcess, running_fleet
from tests.waiting import START, until

from rolloutfleet.errors import STORE_DAMAGED
from rolloutfleet_proxy.process.decisions import DAMAGED
from rolloutfleet_proxy.store.tally import FILE as TALLY


def chatted(proxy: ProxyProcess, *, turns: int) -> tuple[AgentSession, list[Any]]:
    """A session, and what was said in it."""
    session, messages = proxy.start_session(), list[Any]()
    for number in range(turns):
        messages.append({"role": "user", "content": f"turn {number} of {session.session_id}"})
        reply = session.raw_chat({"messages": messages})
        assert reply.status_code == 200, reply.text
        messages.append(reply.json()["choices"][0]["message"])
    return session, messages


def flip(proxy: ProxyProcess, column: str, session: AgentSession) -> None:
    """Flip a bit of a column of a session's newest turn, in the file itself. The proxy is down."""
    with contextlib.closing(sqlite3.connect(proxy.store_file)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        content, name = connection.execute(
            f"SELECT {column}, turns.name FROM turns JOIN sessions ON sessions.id = session WHERE sessions.name = ?"
            " ORDER BY number DESC LIMIT 1",
            (session.session_id,),
        ).fetchone()
    image = bytearray(proxy.store_file.read_bytes())
    image[image.index(content, image.index(name.encode())) + len(content) // 2] ^= 1
    proxy.store_file.write_bytes(image)


def exported(proxy: ProxyProcess, **asked: Any) -> dict[str, Any]:
    with proxy.admin() as admin:
        reply = admin.post("/export", json=asked, headers={"Accept": "application/json"})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


@pytest.fixture
def proxy(tmp_path: Path, shared: Fleet) -> Iterator[ProxyProcess]:
    with running_fleet(tmp_path, beside=shared) as fleet:
        yield fleet.proxy


def test_flipped_bits_are_found_after_a_crash_and_given_to_nobody(proxy: ProxyProcess) -> None:
    columns = ("output_ids", "logprobs", "output")
    *bad, sound = [chatted(proxy, turns=2)[0] for _ in range(len(columns) + 1)]
    going_on, messages = chatted(proxy, turns=2)
    with proxy.admin() as admin:
        for session in (*bad, sound):
            admin.post(f"/sessions/{session.session_id}/close").raise_for_status()
    proxy.kill()
    for column, session in zip(columns, bad, strict=True):
        flip(proxy, column, session)
    flip(proxy, "prompt_ids", going_on)
    proxy.start()
    check = until(lambda: (found := proxy.stats()["check"])["state"] not in (None, "running") and found)
    assert check["state"] == "damaged" and len(check["found"]) == 4
    until(lambda: "the store is damaged: turn 2 of the session in row" in proxy.log.read_text())

    names = [session.session_id for session in (*bad, sound)]
    answer = exported(proxy, session_ids=names)
    assert [each["status"] for each in answer["sessions"]] == ["damaged"] * 3 + ["leased"]
    assert [each["session_id"] for each in answer["trajectories"]] == [sound.session_id]
    refused = going_on.raw_chat({"messages": [*messages, {"role": "user", "content": "turn 2"}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, STORE_DAMAGED), refused.text
    assert "Turn 2 of this session is damaged" in refused.json()["error"]["message"]
    assert refused.headers["x-should-retry"] == "false"
    with proxy.admin() as admin:
        assert admin.get("/audit").json()["balanced"] is True


def test_a_file_that_is_no_store_ends_the_start_with_a_status_of_its_own(proxy: ProxyProcess) -> None:
    proxy.stop()
    with proxy.store_file.open("r+b") as file:
        file.write(bytes(16))
    proxy.launch()
    assert proxy.process is not None and proxy.process.wait(START) == DAMAGED
    proxy.process = None
    assert "store.sqlite3 can't be opened as a store: file is not a database" in proxy.log.read_text()
    assert "runbook, under StoreDamaged" in proxy.log.read_text()


def test_a_log_that_is_lost_is_told_of_with_the_turns_that_were_in_it(proxy: ProxyProcess) -> None:
    chatted(proxy, turns=2)
    proxy.stop()
    proxy.start()
    chatted(proxy, turns=3)
    tally = proxy.store_file.with_name(TALLY)
    until(lambda: tally.exists() and json.loads(tally.read_text())["turns"] == 5)
    proxy.kill()
    with proxy.store_file.with_name(f"{proxy.store_file.name}-wal").open("r+b") as log:
        log.write(bytes(32))
    proxy.start()
    assert ", 3 turns, 1 session; the file or its log was damaged" in proxy.log.read_text()
    with proxy.admin() as admin:
        audit = admin.get("/audit").json()
    assert audit["missing"].pop("commits") > 3
    assert (audit["missing"], audit["balanced"]) == ({"turns": 3, "sessions": 1}, False)
