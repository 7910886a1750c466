# mypy: disable-error-code="import-not-found"
"""Gives a model directory that has a tokenizer and a configuration, but no weights, random ones.

Run in the real SGLang's environment: python build_model.py --shipped DIR --seed 1 --output DIR
With --size the model gets the layers of a published one, in bfloat16: for a GPU.
"""

import argparse
import shutil
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM
from transformers.utils import logging

# As initialised, the weights give nearly equal log-probabilities to all tokens, and a wrong one would go unseen.
SPREAD = 6.0
SIZES = {
    "0.6B": {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16},
    "4B": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36, "num_attention_heads": 32},
}
"""Qwen3's own, less the embeddings: the vocabulary is that of the tokenizer."""


def build(*, shipped: Path, seed: int, output: Path, size: str | None = None) -> None:
    shutil.copytree(shipped, output)
    # Tied to the embedding, the output layer would mostly repeat the token just read.
    config = Qwen3Config.from_pretrained(shipped, tie_word_embeddings=False)
    width = config.hidden_size
    if size is not None:
        config.update(SIZES[size] | {"num_key_value_heads": 8, "head_dim": 128, "dtype": "bfloat16"})
        config.layer_types = ["full_attention"] * config.num_hidden_layers
        torch.set_default_dtype(torch.bfloat16)
        torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(SPREAD)
        # Each logit is a sum over the width: as far apart as in the small model.
        model.lm_head.weight.mul_((width / config.hidden_size) ** 0.5)
    model.save_pretrained(output)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--shipped", type=Path, required=True)
    arguments.add_argument("--seed", type=int, required=True)
    arguments.add_argument("--output", type=Path, required=True)
    arguments.add_argument("--size", choices=SIZES)
    chosen = arguments.parse_args()
    logging.disable_progress_bar()
    build(shipped=chosen.shipped, seed=chosen.seed, output=chosen.output, size=chosen.size)


if __name__ == "__main__":
    main()
