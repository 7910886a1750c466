"""The training loop. It runs where PyTorch is; `python -m examples.tiny_rl` starts it, once engine and fleet are up."""

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import openai
import torch
from examples.tiny_rl.agents import GROUP, GROUPS, roll_out
from examples.tiny_rl.parity import check_parity
from examples.tiny_rl.policy import Batch, Policy, advantages_of, furthest

from rolloutfleet import AsyncFleet, FleetError, Trajectory
from rolloutfleet.torch import to_batch

MODEL = Path(__file__).resolve().parents[2] / "engine" / "rolloutfleet_engine" / "model"


@dataclass(frozen=True, slots=True)
class Step:
    """One update."""

    version: int
    """The weights that rolled out."""
    reward: float
    """The mean of what the agents got, whoever it was credited to."""
    tokens: int
    seconds: float
    furthest: float
    """The largest distance between the engine's log-probabilities and the trainer's."""


async def main() -> int:
    asked = _arguments()
    torch.set_num_threads(1)
    policy, rng = Policy.fresh(MODEL, seed=asked.seed), random.Random(asked.seed)
    checkpoints = asked.folder / "checkpoints"
    steps = []
    async with AsyncFleet.from_file(asked.fleet, progress=False) as fleet:
        await put(fleet, policy, checkpoints)
        for _ in range(asked.steps):
            steps.append(await step(fleet, policy, rng if asked.shuffle_rewards else None))
            await put(fleet, policy, checkpoints)
            print(
                f"version {steps[-1].version}: reward {steps[-1].reward:.3f}, {steps[-1].tokens} tokens, "
                f"log-probabilities within {steps[-1].furthest:.1e}, {steps[-1].seconds:.1f} s",
                flush=True,
            )
        parity = await check_parity(fleet, policy, checkpoints, MODEL / "tokenizer.json")
        audit = await fleet.audit()
    found = {"steps": [asdict(each) for each in steps], "parity": parity.figures()}
    asked.results.write_text(json.dumps(found))
    problems = parity.problems + ([] if audit.balanced and not audit.turns.live else ["the audit's sums are not right"])
    for problem in problems:
        print(f"parity: {problem}", flush=True)
    return 1 if problems else 0


async def step(fleet: AsyncFleet, policy: Policy, shuffled: random.Random | None) -> Step:
    """Roll out, take the batch, learn from it."""
    begun, version = time.monotonic(), fleet.version
    await roll_out(fleet)
    async with fleet.export(GROUPS * GROUP, timeout=300) as export:
        trajectories = [trajectory async for trajectory in export]
        batch = to_batch(trajectories)
        rewards = batch["rewards"]
        credited = rewards if shuffled is None else rewards[torch.tensor(_order(len(rewards), shuffled))]
        advantages = advantages_of(credited, batch["group_index"])
        ours = await asyncio.to_thread(policy.scored, batch)
        await annotate(fleet, trajectories, batch | {"ours": ours, "advantages": advantages})
        await asyncio.to_thread(policy.update, batch, advantages)
    tokens = int(batch["loss_mask"].sum())
    return Step(version, float(rewards.mean()), tokens, time.monotonic() - begun, furthest(batch, ours))


async def annotate(fleet: AsyncFleet, trajectories: Sequence[Trajectory], batch: Batch) -> None:
    """Tell the fleet what was computed for each token, for those who look on, while it still has the turns."""
    rows = zip(batch["ours"], batch["loss_mask"], batch["advantages"].tolist(), strict=True)
    for trajectory in trajectories:
        own = list(islice(rows, len(trajectory.rows)))
        await fleet.annotate(
            trajectory,
            logprobs=[ours[mask] for ours, mask, _ in own],
            advantages=[advantage for _, _, advantage in own],
        )


async def put(fleet: AsyncFleet, policy: Policy, checkpoints: Path) -> None:
    """The policy's weights into the engines, as the next version."""
    version = max((await fleet.weights()).version, 1) + 1
    await asyncio.to_thread(policy.save, checkpoints / str(version))
    await fleet.load_from_disk(checkpoints / str(version), version)


def _order(count: int, rng: random.Random) -> list[int]:
    order = list(range(count))
    rng.shuffle(order)
    return order


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", required=True, help="a local fleet's fleet.json, or its folder")
    parser.add_argument("--folder", type=Path, required=True, help="where checkpoints go")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--shuffle-rewards", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(asyncio.run(main()))
    except* (FleetError, openai.OpenAIError) as errors:
        sys.exit("\n".join(f"{type(error).__name__}: {error}" for error in errors.exceptions))
    except* KeyboardInterrupt:
        sys.exit(130)
