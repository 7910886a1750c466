"""Examples of fine-tuning, as TRL's SFTTrainer prepares and batches them."""

import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import numpy as np
from examples.trainers.classes.compared import Bits, Compared, compared, native

from rolloutfleet.formats import Rollout, sft

MODEL: Final = Path(__file__).resolve().parents[3] / "engine" / "rolloutfleet_engine" / "model"
IGNORED: Final = -100
HOW: Final = (
    "trl.SFTTrainer as installed, with a tiny model: ids and labels of the batch that its collator makes of the "
    "dataset that it prepares have to be the rows' ids, and those of them that are trained; no step is made"
)


def compare(rollouts: Sequence[Rollout]) -> Compared:
    """An example for each row that trains something: its ids, and what is trained of them."""
    examples = [sft.rows(rollout) for rollout in rollouts]
    batch = _batch([example for each in examples for example in each])
    rows = iter([_bits(batch, at) for at in range(len(batch["input_ids"]))])
    had = [[next(rows) for _ in each] for each in examples]
    assert next(rows, None) is None
    return compared(rollouts, [[row[:2] for row in native(rollout)] for rollout in rollouts], had)


def _batch(examples: list[dict[str, Any]]) -> dict[str, Any]:
    trl, transformers = import_module("trl"), import_module("transformers")
    config = transformers.Qwen3Config.from_pretrained(MODEL)
    with tempfile.TemporaryDirectory() as folder:
        trainer = trl.SFTTrainer(
            transformers.Qwen3ForCausalLM(config),
            trl.SFTConfig(folder, use_cpu=True, bf16=False, report_to="none", disable_tqdm=True),
            train_dataset=import_module("datasets").Dataset.from_list(examples),
            processing_class=transformers.AutoTokenizer.from_pretrained(MODEL),
        )
        found: dict[str, Any] = trainer.data_collator(list(trainer.train_dataset))
        return found


def _bits(batch: dict[str, Any], at: int) -> Bits:
    there = batch["attention_mask"][at].bool()
    ids, labels = (np.asarray(batch[name][at][there]) for name in ("input_ids", "labels"))
    trained = labels != IGNORED
    assert (labels[trained] == ids[trained]).all()
    return ids.astype(np.int64).tobytes(), trained.astype(np.uint8).tobytes()
