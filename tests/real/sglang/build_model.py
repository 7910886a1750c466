# mypy: disable-error-code="import-not-found"
"""Gives a model directory that has a tokenizer and a configuration, but no weights, random ones.

Run in the real SGLang's environment: python build_model.py --shipped DIR --seed 1 --output DIR
"""

import argparse
import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

# As initialised, the weights give nearly equal log-probabilities to all tokens, and a wrong one would go unseen.
SPREAD = 6.0


def build(*, shipped: Path, seed: int, output: Path) -> None:
    shutil.copytree(shipped, output)
    torch.manual_seed(seed)
    # Tied to the embedding, the output layer would mostly repeat the token just read.
    config = Qwen3Config.from_pretrained(shipped, tie_word_embeddings=False)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SPREAD)
    model.save_pretrained(output)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--shipped", type=Path, required=True)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--output", type=Path, required=True)
    chosen = arguments.parse_args()
    logging.disable_progress_bar()
    build(shipped=chosen.shipped, seed=chosen.seed, output=chosen.output)


if __name__ == "__main__":
    main()
