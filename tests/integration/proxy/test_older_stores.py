"""Sessions that an earlier version of the program recorded go on under this one."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.fleets import AgentSession, Fleet, running_fleet
from tests.integration.proxy.rebuilding import rebuilt
from tests.integration.proxy.test_turns import TOOLS
from tests.waiting import until

STORES = Path(__file__).parent / "stores"
"""SQL that makes the store of a fleet's only proxy; its first line says which session is in it, and its key."""

Messages = list[dict[str, Any]]


class Older:
    """A session of an older store, and what was said in it."""

    def __init__(self, file: Path) -> None:
        self.sql = file.read_text()
        self.names: dict[str, str] = json.loads(self.sql.splitlines()[0].removeprefix("-- "))
        self.messages: dict[str, Messages] = {}

    def restore(self, file: Path) -> None:
        file.parent.mkdir(parents=True)
        with closing(sqlite3.connect(file)) as store:
            store.executescript(self.sql)
            said: dict[int, Messages] = {}
            for number, name, parent, messages, output in store.execute(
                "SELECT number, name, parent, messages, output FROM turns ORDER BY number"
            ):
                said[number] = [*said.get(parent, []), *json.loads(messages), json.loads(output)]
                self.messages[name] = said[number]


@pytest.fixture(scope="module", params=sorted(STORES.iterdir()), ids=lambda file: file.stem)
def older(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared: Fleet
) -> Iterator[tuple[Older, AgentSession]]:
    older = Older(request.param)
    with running_fleet(tmp_path_factory.mktemp("older"), beside=shared, start_proxies=False) as fleet:
        proxy = fleet.proxy
        older.restore(proxy.store_file)
        proxy.start()
        base_url = f"{proxy.url}/sessions/{older.names['session_id']}/v1"
        yield older, AgentSession(proxy, older.names["session_id"], older.names["api_key"], base_url)


def follow_up(said: Messages) -> Messages:
    calls = said[-1].get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Rain."} for call in calls]
    return [*said, *results, {"role": "user", "content": "And then?"}]


@pytest.mark.parametrize("as_sent", [True, False], ids=["as it was said", "rebuilt by a framework"])
def test_every_turn_of_a_session_is_extended(older: tuple[Older, AgentSession], as_sent: bool) -> None:
    known, session = older
    for name, said in known.messages.items():
        request = follow_up(said)
        reply = session.raw_chat(
            {"model": "simulated", "messages": request if as_sent else rebuilt(request), "tools": TOOLS}
        )
        assert reply.status_code == 200, reply.text
        turn = next(turn for turn in session.turns() if turn["turn_id"] == reply.json()["id"])
        assert turn["parent_id"] == name
    assert session.proxy.audit()["balanced"]


def test_lists_say_of_its_turns_what_they_say(older: tuple[Older, AgentSession]) -> None:
    _, session = older
    until(lambda: session.show()["branches"] is not None)
    shown = session.show()
    turns = session.turns()
    versions = [version for turn in turns for version in turn["versions"]]
    assert shown["branches"] == len({turn["turn_id"] for turn in turns} - {turn["parent_id"] for turn in turns})
    assert shown["rewarded"] == sum(turn["reward"] is not None for turn in turns)
    assert shown["output_tokens"] == sum(turn["completion_tokens"] for turn in turns)
    assert (shown["version_min"], shown["version_max"]) == (min(versions), max(versions))
