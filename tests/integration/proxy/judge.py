"""Is what was answered kept, as the engine made it? Judged by the clients' record, the engine's log and the rows."""

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from itertools import zip_longest
from typing import Any

from tests.fleets import Fleet, ProxyProcess
from tests.integration.proxy.answers import Answer
from tests.integration.proxy.load import Conversation

Json = Any


def engine_notes(fleet: Fleet) -> dict[str, Json]:
    """What the engines noted of each turn's one round, by turn id."""
    rounds = _rounds(fleet)
    assert all(len(notes) == 1 for notes in rounds.values()), "a generation was sent twice"
    return {turn_id: note for turn_id, [note] in rounds.items()}


def joined_notes(fleet: Fleet) -> dict[str, Json]:
    """The engines' notes of each turn, its rounds joined: of each the tokens that the next one was sent behind."""
    read = ((turn_id, [note for note in notes if note["input_ids"]]) for turn_id, notes in _rounds(fleet).items())
    return {turn_id: _joined(notes) for turn_id, notes in read if notes}


def _rounds(fleet: Fleet) -> dict[str, list[Json]]:
    """By turn id. A round that was refused unread has no `input_ids`."""
    rounds: dict[str, list[Json]] = {}
    for engine in fleet.engines:
        for note in engine.log():
            rounds.setdefault(note["rid"].partition(".")[0], []).append(note)
    return rounds


def _joined(rounds: list[Json]) -> Json:
    ids, logprobs = [], []
    for this, following in zip_longest(rounds, rounds[1:]):
        taken = None if following is None else len(following["input_ids"]) - len(this["input_ids"])
        ids += this["output_ids"][:taken]
        logprobs += this["output_logprobs"][:taken]
    return {**rounds[-1], "input_ids": rounds[0]["input_ids"], "output_ids": ids, "output_logprobs": logprobs}


def assert_answered_turns_are_there(answers: Iterable[Answer], turns: Iterable[Json]) -> None:
    """Each answer has its turn, with what the client was told of it."""
    kept = {turn["turn_id"]: turn for turn in turns}
    for answer in answers:
        turn = kept[answer.turn_id]
        assert turn["parent_id"] == answer.parent_id and turn["finish_reason"] == answer.finish_reason
        assert answer.logprobs in (None, turn["logprobs"])


def assert_whole(turn: Json) -> None:
    """No half of a turn is there without the other."""
    assert turn["completion_tokens"] > 0
    assert len(turn["output_ids"]) == len(turn["logprobs"]) == len(turn["versions"]) == turn["completion_tokens"]


def assert_the_engines_own(turns: Iterable[Json], notes: dict[str, Json]) -> None:
    """Ids and log-probabilities are the engine's, and a child's prompt begins with its parent's prompt and output."""
    for turn in turns:
        assert_whole(turn)
        note = notes[turn["turn_id"]]
        assert turn["output_ids"] == note["output_ids"] and turn["logprobs"] == note["output_logprobs"]
        assert turn["prompt_tokens"] == len(note["input_ids"])
        if turn["parent_id"] is not None:
            _assert_extends(note, notes[turn["parent_id"]])


def assert_exported(conversation: Conversation, notes: dict[str, Json]) -> None:
    """Each answer is in the session's export: the message, and the engine's ids and log-probabilities."""
    assert conversation.exported is not None
    exported = {turn["turn_id"]: (turn, rows) for turn, rows in exported_turns(conversation.exported)}
    for answer in conversation.answers:
        turn, tokens = exported[answer.turn_id]
        note = notes[answer.turn_id]
        assert turn["parent_id"] == answer.parent_id and turn["finish_reason"] == answer.finish_reason
        assert said(turn["message"]) == said(answer.message)
        assert [token for token, _ in tokens] == note["output_ids"]
        assert [logprob for _, logprob in tokens] == note["output_logprobs"]
        if answer.parent_id is not None:
            _assert_extends(note, notes[answer.parent_id])
    if conversation.reward is not None:
        assert exported[conversation.answers[-1].turn_id][0]["reward"] == conversation.reward
    if conversation.exactly_once:
        assert list(exported) == [answer.turn_id for answer in conversation.answers]


def said(message: Json) -> Json:
    """A message without what is absent."""
    return {name: value for name, value in message.items() if value not in (None, "", [])}


_ASTRAY = """
SELECT * FROM pragma_foreign_key_check AS astray WHERE NOT EXISTS (SELECT 1 FROM turns JOIN freed_sessions
    ON freed_sessions.id = turns.session WHERE astray."table" = 'turns' AND turns.id = astray.rowid)
"""
"""References to what is not there, but for those of turns that are still to be deleted."""


def assert_sound(proxy: ProxyProcess) -> None:
    """SQLite's own checks of a proxy's file, and that each turn's parent is there."""
    with closing(sqlite3.connect(proxy.store_file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute(_ASTRAY).fetchall() == []
        orphaned = connection.execute(
            "SELECT count(*) FROM turns AS child WHERE parent IS NOT NULL AND NOT EXISTS"
            " (SELECT 1 FROM turns WHERE session = child.session AND number = child.parent)"
        ).fetchone()
        assert orphaned == (0,)


def exported_turns(trajectories: list[Json]) -> Iterable[tuple[Json, list[tuple[int, float]]]]:
    """Each exported turn with the (id, log-probability) pairs of its sampled tokens, from the row that trains it."""
    turns = [turn for trajectory in trajectories for turn in trajectory["turns"]]
    tokens: list[list[tuple[int, float]]] = [[] for _ in turns]
    for row in (row for trajectory in trajectories for row in trajectory["rows"]):
        columns = (row["tensors"][name] for name in ("turn_ids", "loss_mask", "input_ids", "logprobs"))
        for turn, trains, token, logprob in zip(*columns, strict=True):
            if trains:
                tokens[turn].append((token, logprob))
    return zip(turns, tokens, strict=True)


def _assert_extends(child: Json, parent: Json) -> None:
    before = parent["input_ids"] + parent["output_ids"]
    assert child["input_ids"][: len(before)] == before


def assert_all_is_kept(fleet: Fleet, conversations: Sequence[Conversation]) -> None:
    """With nobody at work, every turn is the engine's own, and every sum is what clients know it to be."""
    proxy, notes = fleet.proxy, engine_notes(fleet)
    kept = trained = 0
    for conversation in conversations:
        if conversation.exported is not None:
            assert_exported(conversation, notes)
            trained += sum(len(trajectory["turns"]) for trajectory in conversation.exported)
            continue
        turns = conversation.session.turns()
        assert_answered_turns_are_there(conversation.answers, turns)
        assert_the_engines_own(turns, notes)
        if conversation.exactly_once:
            assert [turn["turn_id"] for turn in turns] == [answer.turn_id for answer in conversation.answers]
        kept += len(turns)
    audit = proxy.audit()
    assert audit["balanced"]
    assert audit["turns"]["live"] == kept and audit["turns"]["acknowledged"] == trained
    assert audit["turns"]["created"] == kept + trained
    assert audit["sessions"]["created"] == len(conversations)
    assert proxy.stats()["in_flight"] == 0
    assert "Traceback" not in proxy.log.read_text()
    assert_sound(proxy)
