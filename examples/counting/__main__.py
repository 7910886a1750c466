"""A whole training loop without a GPU or torch: `python -m examples.counting`, with a local fleet up.

Agents roll out under a staleness budget, beside the trainer; the trainer takes a batch, learns from it, and puts new
weights with a new version into the engines while the agents talk. The policy that learns only counts (policy.py), and
the engines are simulated: what is real is everything between them.

    rolloutfleet up examples/quickstart/fleet.yaml          # in another terminal
    python -m examples.counting --steps 12
"""

import argparse
import asyncio
import contextlib
import random
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import openai
from examples.counting.policy import ARMS, Policy, reward_of
from rich.console import Console
from rich.table import Table

from rolloutfleet import AsyncFleet, FleetError, StalenessManager, Trajectory

GROUP = 4
BATCH = 16
AGENTS = 8
PAUSE_AFTER_FAILURE = 0.5

console = Console(highlight=False)


@dataclass(frozen=True)
class Step:
    """What a step trained on."""

    version: int
    reward: float
    oldest: int
    """How many versions behind the oldest token was."""
    tokens: int


async def main() -> int:
    asked = _arguments()
    budget = StalenessManager(max_concurrent=AGENTS * GROUP, max_staleness=asked.max_staleness, batch_size=BATCH)
    policy, rng = Policy(), random.Random(asked.seed)
    try:
        async with AsyncFleet.from_file(asked.fleet, staleness=budget) as fleet:
            # Whatever an earlier trainer left is not ours: begin a run of our own.
            await fleet.recover((await fleet.weights()).version, open="close")
            async with rollouts(fleet, policy, rng):
                steps = [await train(fleet, policy) for _ in range(asked.steps)]
            async with fleet.export() as rest:
                left = [trajectory async for trajectory in rest]
            audit = await fleet.audit()
    except FleetError as error:
        console.print(f"[red]{error}[/]")
        return 1
    show(steps, policy)
    console.print(f"{len(left)} more were under way; sums of the audit {'are equal' if audit.balanced else 'DIFFER'}")
    return 0 if audit.balanced else 1


async def train(fleet: AsyncFleet, policy: Policy) -> Step:
    """One step: a batch, an update of the policy, new weights everywhere."""
    async with fleet.export(BATCH, timeout=120) as export:
        batch = [trajectory async for trajectory in export]
        policy.learn((int(each.metadata["arm"]), each.reward or 0.0) for each in batch)
    behind = max(fleet.version - (each.oldest_version or 0) for each in batch)
    tokens = sum(trained_tokens(each) for each in batch)
    step = Step(fleet.version, sum(each.reward or 0.0 for each in batch) / len(batch), behind, tokens)
    version = fleet.version + 1
    await fleet.load_from_disk(f"checkpoints/{version}", version)  # simulated engines take any path
    console.print(
        f"version {step.version}: reward {step.reward:.2f} from {len(batch)} trajectories, {tokens} tokens, "
        f"at most {behind} versions old"
    )
    return step


def trained_tokens(trajectory: Trajectory) -> int:
    return sum(int(np.sum(np.asarray(row.tensors["loss_mask"]))) for row in trajectory.rows)


@contextlib.asynccontextmanager
async def rollouts(fleet: AsyncFleet, policy: Policy, rng: random.Random) -> AsyncIterator[None]:
    """Agents at work beside the trainer, as many as the budget lets."""
    tasks = [asyncio.create_task(_roll_out(fleet, policy, rng)) for _ in range(AGENTS)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _roll_out(fleet: AsyncFleet, policy: Policy, rng: random.Random) -> None:
    while True:
        arm = policy.choose(rng)
        try:
            async with await fleet.start_group(GROUP, "two dozen tokens", metadata={"arm": arm}) as group:
                for session in group:
                    tokens = await _answer(session.base_url, session.api_key, arm, rng.random())
                    await session.reward(reward_of(tokens))
        except (FleetError, openai.OpenAIError) as error:
            console.print(f"[dim]an agent gave up: {error}[/]")
            await asyncio.sleep(PAUSE_AFTER_FAILURE)


async def _answer(base_url: str, api_key: str, arm: int, salt: float) -> int:
    """How many tokens the answer has."""
    async with openai.AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        question = f"Tell me about {salt:.6f} in two dozen tokens."
        answer = await client.chat.completions.create(
            model="simulated", messages=[{"role": "user", "content": question}], max_tokens=arm
        )
    return answer.usage.completion_tokens if answer.usage is not None else 0


def show(steps: list[Step], policy: Policy) -> None:
    table = Table(
        "tokens asked for", "tries", "mean reward", box=None, title="\nWhat was learned", title_justify="left"
    )
    for arm in ARMS:
        table.add_row(str(arm), str(policy.tries[arm]), f"{policy.worth(arm):.2f}")
    console.print(table)
    first, last = steps[: len(steps) // 2], steps[len(steps) // 2 :]
    means = [sum(step.reward for step in half) / max(1, len(half)) for half in (first, last)]
    console.print(f"mean reward {means[0]:.2f} in the first half, {means[1]:.2f} in the second")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m examples.counting", description=__doc__.partition("\n")[0])
    parser.add_argument("--fleet", help="fleet.json of a local fleet, or its folder (default: the one that is up here)")
    parser.add_argument("--steps", type=int, default=12, help="how many updates (default 12)")
    parser.add_argument("--max-staleness", type=int, default=1, help="how many versions old a token may be (default 1)")
    parser.add_argument("--seed", type=int, default=7, help="of the choices (default 7)")
    return parser.parse_args()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        sys.exit(asyncio.run(main()))
    sys.exit(130)
