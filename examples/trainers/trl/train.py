# mypy: disable-error-code="import-not-found,no-untyped-def,no-untyped-call,misc,arg-type"
"""GRPO by TRL for an agent of two turns, whose rollouts are a fleet's. Copy it.

Tried on a CPU with TRL 1.16 and SGLang 0.5.23, in one process (`make trl`) and in two. It needs TRL, openai and
rolloutfleet in one environment, a fleet (`rolloutfleet up`, docs/local-fleet.md), and a folder that its engines can
read:

    python train.py --fleet .rolloutfleet/NAME/fleet.json --model MODEL --weights /shared/weights
    torchrun --nproc-per-node 2 train.py …
"""

import argparse
import os
from contextlib import ExitStack
from pathlib import Path
from shutil import rmtree

import openai
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rolloutfleet import Fleet
from rolloutfleet.formats import trl

PROMPTS = ["Write.", "More.", "Go on.", "Again."]
GROUP = 8
WISH = "e"


# The agent, and its reward: yours.


def agent(session, prompt):
    """A conversation of two turns. Its reward is the share of what the user wants in each answer, from 0 to 1."""
    client = openai.OpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=4)
    messages, rewards = [], []
    for question in (prompt, "Another."):
        messages.append({"role": "user", "content": question})
        answer = client.chat.completions.create(model="tiny", messages=messages, temperature=1.0, max_tokens=16)
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        text = f"{messages[-1].get('reasoning_content', '')}{messages[-1].get('content', '')}"
        rewards.append(text.count(WISH) / max(1, len(text)))
    return sum(rewards) / len(rewards)


def train(fleet, model, tokenizer, config, *, agent=agent, trainer=GRPOTrainer):
    """Train the model, in place. `agent` and `trainer` may be others, as run.py has them."""

    # Between TRL and the fleet: these lines, and the block around `train`.

    def rollout_func(prompts, trainer):
        n = trainer.num_generations if trainer.model.training else trainer.num_generations_eval
        block, at_end = (training, "acknowledge") if trainer.model.training else (evaluation, "discard")
        block.close()  # what the steps before were trained on is acknowledged, what was evaluated is discarded
        groups = block.enter_context(fleet.rollout(agent, prompts[::n], n=n, ordered=True, on_exit=at_end))
        return trl.rollout([one.trajectories for group in groups for one in group], pad_token_id=tokenizer.pad_token_id)

    class Weights(TrainerCallback):
        def on_step_end(self, args, state, control, model, **_):
            if state.is_world_process_zero:
                model.save_pretrained(f"{args.output_dir}/{state.global_step}")
                fleet.load_from_disk(f"{args.output_dir}/{state.global_step}", fleet.weights().version + 1)
                rmtree(f"{args.output_dir}/{state.global_step - 2}", ignore_errors=True)  # the one before last
            made.accelerator.wait_for_everyone()

        on_train_begin = on_step_end

    # TRL, as ever.

    made = trainer(
        model,
        lambda reward, **_: reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": PROMPTS}),
        processing_class=tokenizer,
        rollout_func=rollout_func,
        callbacks=[Weights()],
    )
    with ExitStack() as training, ExitStack() as evaluation:
        made.train()
    return made


def config_of(weights, *, updates, seed, **more):
    """A group for each prompt in each update, on a CPU. Each process has whole groups."""
    return GRPOConfig(
        str(weights),
        max_steps=updates,
        num_generations=GROUP,
        per_device_train_batch_size=len(PROMPTS) // int(os.environ.get("WORLD_SIZE", "1")) * GROUP,
        gradient_accumulation_steps=1,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        logging_steps=1,
        seed=seed,
        use_vllm=False,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **more,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--fleet", required=True, help="a local fleet's fleet.json, or its folder")
    parser.add_argument("--model", required=True, help="what the engines serve, with its tokenizer")
    parser.add_argument("--weights", type=Path, required=True, help="a folder for checkpoints, which engines can read")
    parser.add_argument("--updates", type=int, default=25)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args()
    model, tokenizer = AutoModelForCausalLM.from_pretrained(asked.model), AutoTokenizer.from_pretrained(asked.model)
    with Fleet.from_file(asked.fleet) as fleet:
        train(fleet, model, tokenizer, config_of(asked.weights.resolve(), updates=asked.updates, seed=asked.seed))


if __name__ == "__main__":
    main()
