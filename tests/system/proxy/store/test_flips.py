"""A thousand bits of a live store flipped, one at a time: nothing is exported other than it was committed, and each
flip is named, or lies where nothing is kept.

The image is that of a store that was killed: its file, and the log that is not yet in it. What a start does is done to
each: open it, hold it against the tally, look through it, export all there is.
"""

import json
import random
import shutil
import sqlite3
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from tests.unit.proxy.stores import SyncStore

from rolloutfleet.wire import AskExport, GiveReward
from rolloutfleet_proxy.domain.errors import DamageFound, DomainError
from rolloutfleet_proxy.domain.idempotency import keyed_call
from rolloutfleet_proxy.exports.forms import json_pieces
from rolloutfleet_proxy.store import boots, damage, database, leases
from rolloutfleet_proxy.store.annotations import Annotations, annotate
from rolloutfleet_proxy.store.database import FILE, PAGE, StoreUnusable
from rolloutfleet_proxy.store.rewards import give_reward
from rolloutfleet_proxy.store.tally import FILE as TALLY
from rolloutfleet_proxy.store.tally import Tally
from rolloutfleet_proxy.store.trajectories import close_session, delete_session

FLIPS: Final = 1000


class Killed(NamedTuple):
    """A store whose process was killed."""

    folder: Path
    sessions: list[str]
    committed: dict[str, Any]
    """Each of its trajectories, as an export has it."""


def lived_in(folder: Path, draw: random.Random) -> Killed:
    """Write what a proxy's store has after a while; half of it stands in the file, half in the log before it."""
    store = SyncStore(folder / "lived in")
    image = folder / "image"
    image.mkdir()
    committed: dict[str, Any] = {}
    store.run(lambda transaction: boots.begin(transaction, crash=None, drain=None))
    for half in range(2):
        for _ in range(16):
            group = store.start(draw.choice((1, 1, 2)), task_id="task", metadata={"of": draw.random()})
            for session, name in group:
                _talk(store, session, name, draw)
        names = [name for (name,) in store.rows("SELECT name FROM sessions")]
        granted = _granted(store, names)
        committed |= exported(store, granted)
        store.run(partial(leases.release, lease=str(granted.lease)))
        _lease(store, half)
        if not half:
            store.reopen()
    store.wait(Tally(store.store).write())
    for name in (FILE, f"{FILE}-wal", TALLY):
        shutil.copy(store.folder / name, image / name)
    store.close()
    return Killed(image, names, committed)


def _granted(store: SyncStore, names: list[str]) -> leases.Grant:
    asked = AskExport(session_ids=names)
    return store.run(lambda transaction: leases.grant(transaction, store.owner, asked))


def exported(store: SyncStore, granted: leases.Grant) -> dict[str, Any]:
    """Trajectories by their ids, each as if it were the only one: turns are numbered within an export."""
    found = {}
    for member in granted.members:
        alone = replace(granted, members=[member])
        [found[member.trajectory_id]] = json.loads(b"".join(json_pieces(store.read, alone, {"sessions": []})))[
            "trajectories"
        ]
    return found


def _talk(store: SyncStore, session: int, name: str, draw: random.Random) -> None:
    turns = draw.randint(1, 5)
    for number in range(1, turns + 1):
        ids = [draw.randrange(100_000) for _ in range(draw.choice((3, 30, 700)))]
        store.commit(
            session,
            name=f"{name}-turn-{number}",
            parent=draw.choice((number - 1, None)) or None,
            prompt=ids,
            output=ids[::-1],
            logprobs=[-draw.random() for _ in ids],
            version=number,
        )
    said = Annotations([], {f"{name}-turn-1": "looked at"})
    store.run(lambda transaction: annotate(transaction, session, said))
    match draw.choice(("reward", "close", "both", "delete", "leave")):
        case "reward":
            store.run(partial(give_reward, session=session, asked=GiveReward(reward=draw.random())))
        case "close":
            store.run(partial(close_session, session=session))
        case "both":
            store.run(partial(give_reward, session=session, asked=GiveReward(reward=draw.random())))
            store.run(partial(close_session, session=session))
        case "delete":
            store.run(partial(delete_session, session=session))


def _lease(store: SyncStore, half: int) -> None:
    call = keyed_call(f"key-{half}", scope="export", body=b"{}")
    granted = store.run(lambda transaction: leases.grant(transaction, store.owner, AskExport(max_trajectories=4), call))
    assert granted.lease is not None
    first, *_, last = granted.members
    store.run(partial(leases.acknowledge, lease=granted.lease, trajectory_ids=[first.trajectory_id]))
    store.run(partial(leases.release, lease=granted.lease, trajectory_ids=[last.trajectory_id]))


class Started:
    """What a start finds in a store, and what a trainer then gets of it."""

    def __init__(self, folder: Path, sessions: list[str]) -> None:
        self.named: list[str] = []
        self.exported: dict[str, Any] = {}
        self.rows: dict[str, list[Any]] | None = None
        try:
            store = SyncStore(folder)
        except (StoreUnusable, DamageFound) as error:
            self.named.append(str(error))
            return
        try:
            with suppress(sqlite3.Error):
                self.rows = _rows(store)
            self._look(store, sessions)
        except (DomainError, sqlite3.Error) as error:
            self.named.append(repr(error))
        store.close()

    def _look(self, store: SyncStore, sessions: list[str]) -> None:
        self.named += store.wait(Tally(store.store).compare())
        self.named += store.read(partial(damage.in_structure, most=20))
        self.named += store.read(damage.damaged_rows)
        after = 0
        while (piece := store.read(partial(damage.look_at_turns, after=after))) is not None:
            after, _, bad = piece
            self.named += bad
        granted = _granted(store, sessions)
        damaged = {each for each in granted.members if not store.read(partial(damage.is_sound, member=each))}
        self.named += [each.trajectory_id for each in damaged]
        if damaged:
            granted = store.run(partial(leases.withhold, granted=granted, damaged=damaged))
        self.exported = exported(store, granted)


def _rows(store: SyncStore) -> dict[str, list[Any]]:
    """All that there is, but for what says which files are to be removed, and SQLite's counters of row ids."""
    tables = store.rows("SELECT name FROM sqlite_schema WHERE type = 'table' AND name != 'sqlite_sequence'")
    found = {name: store.rows(f"SELECT * FROM {name} NOT INDEXED") for (name,) in tables}
    return found | {"": store.rows("SELECT * FROM sqlite_schema")}


@pytest.fixture(autouse=True)
def without_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is synced is not at issue, and there are two thousand stores."""
    set_up = database._set_up

    def quickly(connection: sqlite3.Connection, *args: Any, **options: Any) -> None:
        set_up(connection, *args, **options)
        connection.execute("PRAGMA synchronous = OFF")

    monkeypatch.setattr(database, "_set_up", quickly)


def test_each_of_a_thousand_flips_is_named_or_lies_where_nothing_is_kept(tmp_path: Path) -> None:
    killed = lived_in(tmp_path, random.Random(0))
    whole = Started(Path(shutil.copytree(killed.folder, tmp_path / "whole")), killed.sessions)
    assert whole.named == [] and len(whole.exported) > 10 and whole.rows is not None
    draw = random.Random(1)
    files = {name: (killed.folder / name).read_bytes() for name in (FILE, f"{FILE}-wal")}
    wrong = []
    for flip in range(FLIPS):
        folder = Path(shutil.copytree(killed.folder, tmp_path / str(flip)))
        name = draw.choice(list(files))
        bit = draw.randrange(8 * len(files[name]))
        content = bytearray(files[name])
        content[bit // 8] ^= 1 << bit % 8
        (folder / name).write_bytes(content)
        started = Started(folder, killed.sessions)
        where = f"flip {flip}, {name}, page {bit // 8 // PAGE + 1}, byte {bit // 8}"
        wrong += [
            f"{where}: {each} is not as it was committed"
            for each, trajectory in started.exported.items()
            if not is_committed(trajectory, killed.committed.get(each, {}))
        ]
        if not started.named and started.rows != whole.rows:
            wrong.append(f"{where}: it is not named")
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)


def is_committed(trajectory: dict[str, Any], before: dict[str, Any]) -> bool:
    """Where the end of the log is lost, its session may be open once more, and has no outcome."""
    still_open = {"outcome": None, "outcome_reason": None}
    return trajectory in (before, before | still_open)
