"""What must hold when the run is over. Pure: it compares what the agents saw, what the fleet kept and
exported, and what the engines logged."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from examples.quickstart.record import Answer, Record, text_of


@dataclass(frozen=True, slots=True)
class Check:
    """`passed` of `made` comparisons held. None made is a failure: it would show nothing."""

    name: str
    passed: int
    made: int

    @property
    def ok(self) -> bool:
        return 0 < self.made == self.passed


@dataclass(frozen=True, slots=True)
class Taken:
    """A turn as it was exported in the style `individual`."""

    turn_id: str
    parent_id: str | None
    session_id: str
    message: dict[str, Any]
    input_ids: list[int]
    """Prompt and output."""
    sampled: int
    """How many of them, at the end, the engine sampled."""


def count(name: str, results: Iterable[bool]) -> Check:
    held = list(results)
    return Check(name, sum(held), len(held))


def answers_are_kept(record: Record, turns: dict[str, dict[str, Any]]) -> Check:
    """Every answer that a client got is a turn of its session, with the same tokens' log-probabilities."""
    return count("answers that agents got, kept as turns", (_same_turn(each, turns) for each in record.answers))


def _same_turn(answer: Answer, turns: dict[str, dict[str, Any]]) -> bool:
    turn = turns.get(answer.turn_id)
    if turn is None:
        return False
    same = turn["finish_reason"] == answer.finish_reason and turn["completion_tokens"] == answer.completion_tokens
    return same and (answer.logprobs is None or list(answer.logprobs) == turn["logprobs"])


def turns_were_answers(record: Record, turns: dict[str, dict[str, Any]]) -> Check:
    """No retry became a second turn, and nothing was kept that nobody was told of."""
    told = [answer.turn_id for answer in record.answers]
    return count("turns kept, each of them answered once", (told.count(turn_id) == 1 for turn_id in turns))


def answers_are_exported(record: Record, taken: dict[str, Taken]) -> Check:
    """The exported message is what the client read, joined from a stream or not."""

    def same(answer: Answer) -> bool:
        found = taken.get(answer.turn_id)
        told = (answer.content, answer.reasoning, answer.tool_calls)
        return found is not None and text_of(found.message) == told

    return count("answers exported, word for word", (same(answer) for answer in record.answers))


def tokens_are_the_engines(taken: dict[str, Taken], log: list[dict[str, Any]]) -> Check:
    """The exported ids are what an engine was sent and what it made; nothing was tokenised again."""
    made = {(tuple(entry["input_ids"]), tuple(entry["output_ids"])) for entry in log}

    def own(turn: Taken) -> bool:
        prompt, output = turn.input_ids[: -turn.sampled], turn.input_ids[-turn.sampled :]
        return (tuple(prompt), tuple(output)) in made

    return count("exported turns with the engine's own token ids", (own(turn) for turn in taken.values()))


def follow_ups_extend(record: Record, turns: dict[str, dict[str, Any]]) -> Check:
    """An agent that only appends never leaves its branch."""
    follow_ups = [answer for answer in record.answers if answer.appends and answer.follows_up]
    extended = (turns.get(each.turn_id, {}).get("parent_id") is not None for each in follow_ups)
    return count("follow-up calls that continue the turn before", extended)


def prefixes_hold(taken: dict[str, Taken]) -> Check:
    """A turn's ids begin with its parent's, token by token."""
    children = [turn for turn in taken.values() if turn.parent_id is not None]

    def holds(turn: Taken) -> bool:
        parent = taken.get(turn.parent_id or "")
        return parent is not None and turn.input_ids[: len(parent.input_ids)] == parent.input_ids

    return count("prompts that begin with all tokens before them", (holds(turn) for turn in children))


def sums_are_equal(audits: list[dict[str, Any]], name: str) -> Check:
    """created + imported = live + leased + acknowledged + dumped + discarded, for turns and for sessions.

    Each proxy says so itself, from its counters and from its rows; here it is added up once more.
    """
    own = (bool(audit["balanced"]) for audit in audits)
    added = (_equal(audit[what]) for audit in audits for what in ("turns", "sessions"))
    return count(name, (*own, *added))


def _equal(sums: dict[str, Any]) -> bool:
    parts = [sums[term] for term in ("live", "leased", "acknowledged", "dumped")]
    return bool(sums["created"] + sums["imported"] == sum(parts) + sum(sums["discarded"].values()))


def taken_turns(exports: list[dict[str, Any]]) -> dict[str, Taken]:
    """The turns of exports in the style `individual`, where each has a row of its own."""
    found: dict[str, Taken] = {}
    for trajectory in (each for export in exports for each in export["trajectories"]):
        about = {turn["turn_id"]: turn for turn in trajectory["turns"]}
        for row in trajectory["rows"]:
            turn = about[row["turn_ids"][-1]]
            found[turn["turn_id"]] = Taken(
                turn_id=turn["turn_id"],
                parent_id=turn["parent_id"],
                session_id=trajectory["session_id"],
                message=turn["message"],
                input_ids=row["tensors"]["input_ids"],
                sampled=sum(row["tensors"]["loss_mask"]),
            )
    return found


def branches(turns: Iterable[dict[str, Any]]) -> int:
    """Leaves of all sessions' trees."""
    known = list(turns)
    parents = {turn["parent_id"] for turn in known}
    return sum(turn["turn_id"] not in parents for turn in known)
