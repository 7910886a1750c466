"""What must hold of every session, whatever ran in it: its tokens are the engine's, and each is trained once."""

from collections import defaultdict
from typing import Any

from tests.fleets import AgentSession, Fleet
from tests.integration.proxy.judge import assert_the_engines_own, exported_turns, joined_notes

from rolloutfleet.fleet import Command, Whereabouts
from rolloutfleet.fleet import Fleet as Trainer

Json = Any


def judged(fleet: Fleet, session: AgentSession) -> list[Json]:
    """The turns of a session, which is closed and exported: ids and log-probabilities are those of the engine's log, a
    child's prompt begins with its parent's prompt and output, and one export trains every token that was sampled once.
    """
    turns = session.turns()
    notes = joined_notes(fleet)
    assert_the_engines_own(turns, notes)
    exported = list(exported_turns(_export(session)))
    assert [turn["turn_id"] for turn, _ in exported] == [turn["turn_id"] for turn in turns]
    for turn, trained in exported:
        assert [token for token, _ in trained] == notes[turn["turn_id"]]["output_ids"]
    return turns


def by_lineage(turns: list[Json]) -> dict[str, list[Json]]:
    """The turns of each lineage, in their order, by its kind; of several of one kind by kind and number."""
    lineages: dict[tuple[str, str], list[Json]] = defaultdict(list)
    for turn in turns:
        lineages[turn["lineage"]["kind"], turn["lineage"]["id"]].append(turn)
    named: dict[str, list[Json]] = {}
    for own in lineages.values():
        kind = own[0]["lineage"]["kind"]
        named[kind if kind not in named else f"{kind}-{len(named)}"] = own
    return named


def assert_one_conversation(turns: list[Json]) -> None:
    """Every turn but the first extends the one before it."""
    assert [turn["parent_id"] for turn in turns] == [None, *(turn["turn_id"] for turn in turns[:-1])], [
        (turn["turn_id"], turn["parent_id"], turn["branch_reason"]) for turn in turns
    ]


def assert_rolls_out(fleet: Fleet, command: Command, task: str, *, turns: int) -> None:
    """A rollout runs the command twice at once, and each run is one row of so many turns, with its reward."""
    where = Whereabouts.from_url(fleet.proxy.url, admin_key=fleet.proxy.key)
    with (
        Trainer(where, progress=False) as trainer,
        trainer.rollout(command, [task], n=2, reward=lambda session, task: 0.5) as episodes,
    ):
        [group] = list(episodes)
    assert [(one.outcome, one.error, one.reward, len(one.rows)) for one in group] == [("completed", None, 0.5, 1)] * 2
    assert [len(row.turn_ids) for one in group for row in one.rows] == [turns, turns]


def _export(session: AgentSession) -> list[Json]:
    session.post("close").raise_for_status()
    asked = {"session_ids": [session.session_id], "style": "concat", "lease_seconds": 600}
    with session.proxy.admin() as admin:
        reply = admin.post("/export", json=asked, headers={"accept": "application/json"}).raise_for_status()
    trajectories: list[Json] = reply.json()["trajectories"]
    return trajectories
