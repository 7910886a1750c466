# mypy: disable-error-code="import-not-found,no-untyped-call"
"""A run of train.py with random weights, every update compared with the export.

It runs where TRL is; `python -m examples.trainers.trl` starts it, once engine and fleet are up.
"""

import argparse
import itertools
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final
from unittest import mock

import torch
from examples.trainers.trl import train
from examples.trainers.trl.watching import Watch
from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

from rolloutfleet import Fleet, FleetError

EVALUATED: Final = 2
"""Members of a group that is evaluated."""
MODEL: Final = Path(__file__).resolve().parents[3] / "engine" / "rolloutfleet_engine" / "model"


def main() -> int:
    asked = _arguments()
    logging.disable_progress_bar()
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    # Tied to the embedding, the output layer would mostly repeat the token just read.
    model = Qwen3ForCausalLM(Qwen3Config.from_pretrained(MODEL, tie_word_embeddings=False))
    watch = Watch()
    evaluation: dict[str, Any] = {}
    if asked.evaluate:
        evaluation = {
            "eval_strategy": "steps",
            "eval_steps": asked.evaluate,
            "num_generations_eval": EVALUATED,
            "per_device_eval_batch_size": EVALUATED * len(train.PROMPTS) // int(os.environ.get("WORLD_SIZE", "1")),
        }
    seen = mock.patch("rolloutfleet.formats.trl.rollout", watch.rollout)
    with Fleet.from_file(asked.fleet, progress=False) as fleet, seen:
        made = train.train(
            fleet,
            model,
            AutoTokenizer.from_pretrained(MODEL),
            train.config_of(asked.weights, updates=asked.updates, seed=asked.seed, **evaluation),
            agent=failing(train.agent, every=train.GROUP) if asked.fail else train.agent,
            trainer=watch.trainer(shuffle=asked.shuffle_rewards),
        )
        made.accelerator.wait_for_everyone()
        audit = fleet.audit()
    if made.accelerator.is_main_process:
        asked.results.write_text(json.dumps({"steps": [*map(asdict, watch.updates)], "evaluated": watch.evaluated}))
    problems = [problem for update in watch.updates for problem in update.problems]
    if not audit.balanced or audit.turns.live or audit.turns.leased:
        problems.append(f"the audit's sums are not right: {audit}")
    for problem in problems:
        print(problem, flush=True)
    return 1 if problems else 0


def failing(agent: Any, *, every: int) -> Any:
    """The agent, but one run of so many fails after it has talked."""
    runs = itertools.count()

    def one(session: Any, prompt: str) -> float:
        reward: float = agent(session, prompt)
        if next(runs) % every == 0:
            raise RuntimeError("this one was to fail")
        return reward

    return one


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", required=True, help="a local fleet's fleet.json, or its folder")
    parser.add_argument("--weights", type=Path, required=True, help="where checkpoints go")
    parser.add_argument("--results", type=Path, required=True, help="where the updates of the main process go")
    parser.add_argument("--updates", type=int, required=True)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument(
        "--evaluate", type=int, metavar="N", help="on the prompts, after every N updates and at the end"
    )
    parser.add_argument("--fail", action="store_true", help="in each group, on average, an agent fails")
    parser.add_argument("--shuffle-rewards", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FleetError as error:
        sys.exit(f"{type(error).__name__}: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
