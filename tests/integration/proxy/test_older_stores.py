"""Sessions that an earlier version of the program recorded go on under this one."""

import json
import sqlite3
from array import array
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.chat_formats import load
from tests.fleets import MODEL, AgentSession, Fleet, running_fleet
from tests.integration.proxy.rebuilding import rebuilt
from tests.integration.proxy.test_turns import engine_made
from tests.waiting import until

from rolloutfleet_engine.model import model_path

STORES = Path(__file__).parent / "stores"
"""SQL that makes the store of a fleet's only proxy; its first line says which session is in it, its key, and the chat
format where that is another than the model's own.

Those of `qwen3.5` are named after the commit that wrote them.
"""
EDITS = sorted(file for file in STORES.iterdir() if "qwen3.5" in file.read_text().splitlines()[0])
TOLD: list[tuple[str, list[str]]] = [
    ("Before.", ['{"old": "return 1", "note": 12345, "at": "\\"a\\""}']),
    ("First.", ['{"old": "x"}', "{}"]),
    ("Done.", []),
]
"""Content and calls' arguments of the turns in those. What the model had written: four blanks before `return`, the
string 12345, tabs and line breaks around `x`, a parameter without its end, and words between and behind the calls.
The agent sent the second one's results in another order than their calls."""

Messages = list[dict[str, Any]]
Row = dict[str, Any]


class Older:
    """A session of an older store, and what was said in it."""

    def __init__(self, file: Path) -> None:
        self.sql = file.read_text()
        self.names: dict[str, str] = json.loads(self.sql.splitlines()[0].removeprefix("-- "))
        self.rows: list[Row] = []
        self.tools: list[Any] = []
        self.messages: dict[str, Messages] = {}
        self.ids: dict[str, bytes] = {}
        """Prompt and output of each turn, as int32."""

    @property
    def renderer(self) -> str | None:
        return self.names.get("renderer")

    def restore(self, file: Path) -> None:
        file.parent.mkdir(parents=True)
        with closing(sqlite3.connect(file)) as store:
            store.executescript(self.sql)
            self.rows = rows(store)
        names = {row["number"]: row["name"] for row in self.rows}
        for row in self.rows:
            before = names.get(row["parent"], "")
            said = [*json.loads(row["messages"]), json.loads(row["output"])]
            self.messages[row["name"]] = [*self.messages.get(before, []), *said]
            self.ids[row["name"]] = self.ids.get(before, b"") + row["prompt_ids"] + row["output_ids"]
        self.tools = json.loads(self.rows[0]["tools"])["tools"]


def rows(store: sqlite3.Connection) -> list[Row]:
    """All turns, by the names that columns have now."""
    found = store.execute("SELECT * FROM turns ORDER BY number")
    columns = ["matching" if name == "reasonings" else name for name, *_ in found.description]
    return [dict(zip(columns, row, strict=True)) for row in found]


@pytest.fixture(scope="module", params=sorted(STORES.iterdir()), ids=lambda file: file.stem)
def older(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, shared: Fleet
) -> Iterator[tuple[Older, AgentSession]]:
    older = Older(request.param)
    settings = {"tokenizer": {"path": str(model_path()), "renderer": older.renderer}}
    folder = tmp_path_factory.mktemp("older")
    with running_fleet(folder, settings=settings, beside=shared, start_proxies=False) as fleet:
        proxy = fleet.proxy
        older.restore(proxy.store_file)
        proxy.start()
        base_url = f"{proxy.url}/sessions/{older.names['session_id']}/v1"
        yield older, AgentSession(proxy, older.names["session_id"], older.names["api_key"], base_url)


def follow_up(said: Messages) -> Messages:
    calls = said[-1].get("tool_calls") or []
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "Rain."} for call in calls]
    return [*said, *results, {"role": "user", "content": "And then?"}]


@pytest.mark.parametrize("older", EDITS, ids=lambda file: file.stem, indirect=True)
def test_a_call_with_its_key_gets_the_message_that_its_agent_was_told(older: tuple[Older, AgentSession]) -> None:
    known, session = older
    told = []
    for row in known.rows[:-1]:
        [*asked, said] = known.messages[row["name"]]
        body = {"model": MODEL, "messages": asked, "tools": known.tools}
        reply = session.raw_chat(body, idempotency_key=row["idempotency_key"])
        assert reply.status_code == 200, reply.text
        assert (reply.json()["id"], reply.json()["choices"][0]["message"]) == (row["name"], said)
        told.append((said["content"], [call["function"]["arguments"] for call in said.get("tool_calls", [])]))
    assert told == TOLD


@pytest.mark.parametrize("as_sent", [True, False], ids=["as it was said", "rebuilt by a framework"])
def test_every_turn_of_a_session_is_extended(older: tuple[Older, AgentSession], shared: Fleet, as_sent: bool) -> None:
    known, session = older
    for name, said in known.messages.items():
        request = follow_up(said)
        reply = session.raw_chat(
            {"model": MODEL, "messages": request if as_sent else rebuilt(request), "tools": known.tools}
        )
        assert reply.status_code == 200, reply.text
        turn = next(turn for turn in session.turns() if turn["turn_id"] == reply.json()["id"])
        assert turn["parent_id"] == name
        made = engine_made(shared, turn)
        assert array("i", made["input_ids"]).tobytes().startswith(known.ids[name])
    assert session.proxy.audit()["balanced"]


def test_rows_of_its_turns_stay_as_they_are(older: tuple[Older, AgentSession]) -> None:
    known, session = older
    session.proxy.stop()
    session.proxy.start()
    [*_, last] = known.messages.values()
    reply = session.raw_chat({"model": MODEL, "messages": follow_up(last), "tools": known.tools})
    assert reply.status_code == 200, reply.text
    with closing(sqlite3.connect(f"file:{session.proxy.store_file}?mode=ro", uri=True)) as store:
        found = rows(store)
    assert found[: len(known.rows)] == known.rows
    rules = load(model_path(), renderer=known.renderer).rules.name
    assert {json.loads(row["matching"])["rules"] for row in found[len(known.rows) :]} == {rules}


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
