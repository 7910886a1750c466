"""Are the exported log-probabilities those of the weights that made each token?

Sessions of several turns, with tools declared and with forks, run while the weights are changed in the middle of a
long turn, once in each mode. Then each row is scored anew, by every version that made a token of it. A turn that an
`in_place` update cuts stands on a cache of older weights: it is marked, and must differ; the next one must not, though
no cache is flushed. As a control the same rows are scored after their text was tokenised again, as a trainer would have
to that kept messages: that must fail.
"""

import asyncio
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from examples.tiny_rl.agents import TOOLS, Messages, ask, ask_streaming, client_of
from examples.tiny_rl.policy import Policy
from tokenizers import Tokenizer

from rolloutfleet import AsyncFleet, Trajectory
from rolloutfleet.fleet.trajectories import Row
from rolloutfleet.torch import to_batch

EQUAL: Final = 1e-4
"""Of the same weights, a log-probability is no further away."""
OTHER: Final = 1e-3
"""Of other weights, some token of a turn is further away than this."""
MODES: Final = ("abort", "retract", "in_place")
SESSIONS: Final = 3
LONG: Final = 500
CUT_AFTER: Final = 5
"""Chunks of the stream; one may hold many tokens where the machine is busy."""
MOVED: Final = 0.02


@dataclass(frozen=True, slots=True)
class Parity:
    """What the check saw."""

    rows: int
    forks: int
    """Rows beyond the first of their trajectory."""
    turns: int
    cut_turns: int
    """Turns that several versions made, without those that are marked."""
    versions: int
    tokens: int
    furthest: float
    """Over all tokens but those of marked turns."""
    marked_turns: int
    furthest_marked: float
    retokenised_rows: int
    """Rows whose ids are others once their text is tokenised again."""
    furthest_retokenised: float

    @property
    def problems(self) -> list[str]:
        """What is not as it has to be."""
        wrong = {
            f"log-probabilities are {self.furthest:.1e} apart, more than {EQUAL:g}": self.furthest > EQUAL,
            "no turn was cut by a weight update": self.cut_turns < 2,
            "no turn is a fork": self.forks < 1,
            "no turn of the update in place is marked": self.marked_turns < 1,
            "a turn behind the update in place is marked": self.marked_turns > SESSIONS,
            f"marked turns are only {self.furthest_marked:.1e} apart": self.furthest_marked < OTHER,
            "rows that were tokenised again pass, too": self.furthest_retokenised < OTHER,
        }
        return [text for text, holds in wrong.items() if holds]

    def figures(self) -> dict[str, Any]:
        """For a table; infinity, which JSON has not, as text."""
        return {name: str(value) if value == math.inf else value for name, value in asdict(self).items()}


async def check_parity(fleet: AsyncFleet, policy: Policy, checkpoints: Path, tokenizer: Path) -> Parity:
    """Run the sessions and score them. `checkpoints` holds a folder a version, and gets more."""
    for mode in MODES:
        await _talk_through_an_update(fleet, policy, checkpoints, mode)
    async with fleet.export(style="concat") as export:
        found = [trajectory async for trajectory in export]
    return await asyncio.to_thread(judged, found, checkpoints, Tokenizer.from_file(str(tokenizer)))


async def _talk_through_an_update(fleet: AsyncFleet, policy: Policy, checkpoints: Path, mode: Any) -> None:
    """Some sessions at once, each in the middle of a long turn when the weights change."""
    midway = [asyncio.Event() for _ in range(SESSIONS)]
    version = fleet.version + 1
    policy.moved(seed=version, by=MOVED)
    await asyncio.to_thread(policy.save, checkpoints / str(version))
    async with asyncio.TaskGroup() as at_work:
        for event in midway:
            at_work.create_task(_talk(fleet, event))
        for event in midway:
            await event.wait()
        await fleet.load_from_disk(checkpoints / str(version), version, mode)


async def _talk(fleet: AsyncFleet, midway: asyncio.Event) -> None:
    """A turn, a branch of it, a long turn that the update cuts, and one that goes on from there."""
    async with await fleet.start_session("parity") as session, client_of(session) as client:
        messages: Messages = [{"role": "system", "content": "Be careful."}, {"role": "user", "content": "Begin."}]
        messages.append(await ask(client, messages, tools=TOOLS, max_tokens=20))
        await ask(client, [*messages, {"role": "user", "content": "Another way."}], tools=TOOLS, max_tokens=20)
        await ask(client, [*messages[:-2], {"role": "user", "content": "Or so."}], tools=TOOLS, max_tokens=20)
        messages.append({"role": "user", "content": "Go on."})

        def seen(chunks: int) -> None:
            if chunks >= CUT_AFTER:
                midway.set()

        # With log-probabilities each token has a chunk, even while text that may become a tool call is held back.
        ever = {"max_tokens": LONG, "tools": TOOLS, "logprobs": True, "extra_body": {"ignore_eos": True}}
        try:
            messages.append(await ask_streaming(client, messages, seen, **ever))
        finally:
            # Whoever waits for this turn's middle must not wait for ever.
            midway.set()
        messages.append({"role": "user", "content": "And in the end?"})
        await ask(client, messages, tools=TOOLS, max_tokens=20)
        await session.reward(1.0)


# The judge


@dataclass(frozen=True, slots=True)
class _Scored:
    """A row with what the engine said of it, and which of its tokens are judged."""

    group_id: str
    trajectory_id: str
    row: Row
    marked: "np.ndarray[Any, Any]"
    """bool [tokens]: sampled in a turn that is marked."""

    @property
    def rows(self) -> Sequence[Row]:
        return [self.row]


def judged(trajectories: Sequence[Trajectory], checkpoints: Path, tokenizer: Tokenizer) -> Parity:
    """Score every row by the versions that made it."""
    scored = [each for trajectory in trajectories for each in _rows(trajectory)]
    again = [_tokenised_again(each, tokenizer) for each in scored]
    names = sorted({version for each in scored for version in _versions(each.row)})
    apart: list[tuple[_Scored, np.ndarray[Any, Any]]] = []
    retokenised = 0.0
    for name in names:
        policy = Policy.load(checkpoints / str(name))
        apart += [(each, _distances(policy, each.row, name)) for each in scored]
        retokenised = max([retokenised, *(_furthest(policy, each, name) for each in again)])
    plain = [float(far[~each.marked].max(initial=0.0)) for each, far in apart]
    marked = [float(far[each.marked].max(initial=0.0)) for each, far in apart]
    turns = [turn for trajectory in trajectories for turn in trajectory.turns]
    return Parity(
        rows=len(scored),
        forks=len(scored) - len(trajectories),
        turns=len(turns),
        cut_turns=sum(_cut_turns(each) for each in scored),
        versions=len(names),
        tokens=sum(int(np.sum(np.asarray(each.row.tensors["loss_mask"]))) for each in scored),
        furthest=max(plain, default=math.inf),
        marked_turns=sum(turn.mixed_cache for turn in turns),
        furthest_marked=max(marked, default=0.0),
        retokenised_rows=sum(_ids(one.row) != _ids(other) for one, other in zip(scored, again, strict=True)),
        furthest_retokenised=retokenised,
    )


def _rows(trajectory: Trajectory) -> Iterator[_Scored]:
    mixed = np.array([turn.mixed_cache for turn in trajectory.turns] + [False])
    for row in trajectory.rows:
        # The last entry is where -1 points.
        marked = mixed[np.asarray(row.tensors["turn_ids"])]
        yield _Scored(trajectory.group_id, trajectory.trajectory_id, row, marked)


def _distances(policy: Policy, row: Row, version: int) -> "np.ndarray[Any, Any]":
    """float [tokens]: how far the engine's log-probability is from this policy's; 0 on what others made."""
    import torch

    one = _Scored("", "", row, np.zeros(0))
    with torch.no_grad():
        ours = policy.logprobs(to_batch([one]))[0].numpy()
    theirs = np.asarray(row.tensors["logprobs"])
    made = (np.asarray(row.tensors["versions"]) == version) & (np.asarray(row.tensors["loss_mask"]) == 1)
    return np.where(made, np.abs(np.concatenate([[0.0], ours]) - theirs), 0.0)


def _furthest(policy: Policy, row: Row, version: int) -> float:
    """The same over a row; infinite where its tensors no longer fit together, which is a failure too."""
    if version not in _versions(row):
        return 0.0
    if len(_ids(row)) != len(np.asarray(row.tensors["logprobs"])):
        return math.inf
    return float(_distances(policy, row, version).max(initial=0.0))


def _tokenised_again(scored: _Scored, tokenizer: Tokenizer) -> Row:
    """The row as somebody has it who kept its text, not its ids."""
    text = tokenizer.decode(_ids(scored.row), skip_special_tokens=False)
    ids = np.array(tokenizer.encode(text, add_special_tokens=False).ids, dtype=np.int64)
    return replace(scored.row, tensors={**scored.row.tensors, "input_ids": ids})


def _cut_turns(scored: _Scored) -> int:
    """How many turns of a row several versions made, without those that are marked."""
    turns, versions = (np.asarray(scored.row.tensors[name]) for name in ("turn_ids", "versions"))
    own = set(turns[(turns >= 0) & ~scored.marked].tolist())
    return sum(len(set(versions[turns == turn].tolist())) > 1 for turn in own)


def _versions(row: Row) -> set[int]:
    versions = np.asarray(row.tensors["versions"])
    return set(versions[versions >= 0].tolist())


def _ids(row: Row) -> list[int]:
    found: list[int] = np.asarray(row.tensors["input_ids"]).tolist()
    return found
