"""A session of 200 turns: what a late turn costs and stores, and what its commit costs, against an early one.

All sessions go on turn by turn together, so that the proxy's CPU can be read before and after turns 18-22 and turns
196-200: what it takes for each byte of a request must not grow. A turn stores only its new tokens and messages, so
what it stores and what its commit costs must stay as they are however long the session is. The sessions are made by
the load generator through gateway and proxy. Bytes are counted in the rows; for the CPU of commits the same rows are
committed again, one by one in their order, to an empty store, and the thread's CPU time is read around each commit:
within the proxy one commit carries the turns of many sessions.

    python -m benchmarks turn_growth
"""

import contextlib
import sqlite3
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec

from benchmarks.rigs import accounts, load
from benchmarks.rigs.bench import bench, say
from benchmarks.rigs.figures import Outcome, at_most, figure
from benchmarks.rigs.load import Answers, Generator, Workload
from benchmarks.rigs.plan import Plan
from benchmarks.rigs.stack import Proxy
from rolloutfleet_proxy.domain.matching import Matching
from rolloutfleet_proxy.domain.turn import Extras, NewTurn
from rolloutfleet_proxy.store.database import open_database
from rolloutfleet_proxy.store.transaction import Transaction, write_counts
from rolloutfleet_proxy.store.turns import commit_turn

TURNS = 200
AGENTS = 8
EARLY = range(2, 7)
TWENTIETH = range(18, 23)
LATE = range(TURNS - 4, TURNS + 1)
"""Five turns on either side, over all sessions: replies differ in length by ±20 %."""
REPLY_TOKENS = 150
WORKLOAD = Workload(turns=TURNS, shared=2_000, task=1_000, message=200)
"""Short turns: 200 of the other rigs' would pass the model's context length."""

PerTurn = dict[int, list[float]]
"""By a turn's number, one value a session."""


def turn_growth(plan: Plan) -> Outcome:
    """CPU a request byte of turns 196-200 over turns 18-22; bytes stored and commit CPU of 196-200 over 2-6."""
    with bench(plan, reply_tokens=REPLY_TOKENS, workload=WORKLOAD) as on:
        proxy = on.proxy()
        begun = replace(WORKLOAD, turns=TWENTIETH.start - 1)
        options = {"sessions": plan.growth_sessions, "in-flight": AGENTS}
        line = load.command(target=proxy.target, workload=begun, texts=on.texts, seed=next(on.seeds), options=options)
        on.commands["load"] = line
        with Generator(line) as generator:
            so_far = generator.expect("opened")
            so_far, early = _more(generator, proxy, TWENTIETH, so_far)
            so_far, _ = _more(generator, proxy, range(TWENTIETH.stop, LATE.start), so_far)
            _, late = _more(generator, proxy, LATE, so_far)
            generator.tell("quit")
            total = Answers(**generator.expect("done")["total"])
        kept = accounts.checks(proxy, [total], label="200_turns")
        with contextlib.closing(sqlite3.connect(_store(proxy.state_dir))) as source:
            source.row_factory = sqlite3.Row
            stored, cpu = bytes_stored(source), commit_cpu(source, on.folder / "again")
    say(f"  {total.answers} turns in {plan.growth_sessions} sessions")
    early_bytes, late_bytes = _of(stored, EARLY, mean), _of(stored, LATE, mean)
    early_cpu, late_cpu = _of(cpu, EARLY, median), _of(cpu, LATE, median)
    figures = [
        figure("turn_cpu_per_byte_growth", "ratio", [late.per_byte / early.per_byte], goal=at_most(1.2)),
        figure("turn_cpu_20", "us", [early.per_turn]),
        figure("turn_cpu_200", "us", [late.per_turn]),
        figure("turn_store_growth", "ratio", [late_bytes / early_bytes], goal=at_most(1.2)),
        figure("turn_commit_cpu_growth", "ratio", [late_cpu / early_cpu], goal=at_most(1.2)),
        figure("turn_bytes_early", "B", [early_bytes]),
        figure("turn_bytes_late", "B", [late_bytes]),
        figure("turn_commit_cpu_early", "us", [early_cpu * 1e6]),
        figure("turn_commit_cpu_late", "us", [late_cpu * 1e6]),
        *kept,
    ]
    by_turn = {number: {"bytes": mean(stored[number]), "cpu_us": median(cpu[number]) * 1e6} for number in stored}
    return Outcome(figures=figures, runs=[{"by_turn": by_turn}], commands=on.commands)


@dataclass(frozen=True, slots=True)
class Spent:
    """What some turns of every session cost the proxy: CPU in microseconds, and bytes of their requests."""

    cpu: float
    turns: int
    request_bytes: int

    @property
    def per_turn(self) -> float:
        return self.cpu / self.turns

    @property
    def per_byte(self) -> float:
        return self.cpu / self.request_bytes


def _more(generator: Generator, proxy: Proxy, numbers: range, so_far: dict[str, Any]) -> tuple[dict[str, Any], Spent]:
    """Let every session have these turns next."""
    before = proxy.cpu_seconds()
    generator.tell(f"more {len(numbers)}")
    now = generator.expect("more")
    spent = Spent(
        cpu=1e6 * (proxy.cpu_seconds() - before),
        turns=now["answers"] - so_far["answers"],
        request_bytes=now["request_bytes"] - so_far["request_bytes"],
    )
    return now, spent


def bytes_stored(source: sqlite3.Connection) -> PerTurn:
    """Bytes of every column of every turn."""
    columns = [row["name"] for row in source.execute("PRAGMA table_info(turns)")]
    size = " + ".join(f"coalesce(length(CAST({column} AS BLOB)), 0)" for column in columns)
    per_turn: PerTurn = {}
    for number, length in source.execute(f"SELECT number, {size} FROM turns ORDER BY number"):
        per_turn.setdefault(number, []).append(length)
    return per_turn


def commit_cpu(source: sqlite3.Connection, folder: Path) -> PerTurn:
    """CPU seconds of this thread for committing each turn again, to a new store in `folder`."""
    database = open_database(folder)
    try:
        with contextlib.closing(database.connect()) as connection:
            _copy_sessions(source, connection)
            per_turn: PerTurn = {}
            # Session by session: the store is as old, on average, when it gets an early turn as a late one.
            for row in source.execute("SELECT * FROM turns ORDER BY session, number"):
                spent = _commit(connection, _turn(row))
                per_turn.setdefault(row["number"], []).append(spent)
            return per_turn
    finally:
        database.close()


def _commit(connection: sqlite3.Connection, turn: NewTurn) -> float:
    began = time.thread_time()
    connection.execute("BEGIN IMMEDIATE")
    transaction = Transaction(connection, served=0.0, wall=0.0)
    commit_turn(transaction, turn)
    write_counts(connection, transaction.counts)
    connection.execute("COMMIT")
    return time.thread_time() - began


def _copy_sessions(source: sqlite3.Connection, target: sqlite3.Connection) -> None:
    for row in source.execute("SELECT * FROM sessions"):
        values = dict(row) | {"turns": 0, "tokens": 0, "state": "open"}
        marks = ", ".join("?" * len(values))
        target.execute(f"INSERT INTO sessions ({', '.join(values)}) VALUES ({marks})", tuple(values.values()))


_decode = msgspec.json.decode

_DECODED: dict[str, Callable[[Any], Any]] = {
    "matching": Matching.decode,
    "messages": _decode,
    "tools": _decode,
    "output": _decode,
    "versions": lambda value: [(version, tokens) for version, tokens in _decode(value)],
    "prompt_ids": lambda value: array("i", value),
    "output_ids": lambda value: array("i", value),
    "logprobs": lambda value: array("f", value),
    "delivered": bool,
    "mixed_cache": bool,
}


def _turn(row: sqlite3.Row) -> NewTurn:
    """The turn that a row was made from."""
    fields = {
        name: _DECODED[name](row[name]) if name in _DECODED and row[name] is not None else row[name]
        for name in NewTurn.__struct_fields__
    }
    return NewTurn(**fields | {"extras": Extras.decode(row["extras"])})


def _store(state_dir: Path) -> Path:
    return next(state_dir.rglob("*.sqlite3"))


def _of(per_turn: PerTurn, numbers: range, middle: Callable[[list[float]], float]) -> float:
    return middle([value for number in numbers for value in per_turn[number]])
