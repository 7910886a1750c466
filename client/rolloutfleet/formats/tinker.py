"""Rows as Tinker's `forward_backward` takes them: one `Datum` a row.

The form is that of tinker_cookbook/rl/data_processing.py, 0.6.1: a model at position i predicts token i + 1, so that
`model_input` lacks the last token, and all else the first.
"""

from collections.abc import Iterable
from importlib import import_module
from typing import Any

import numpy as np

from rolloutfleet.formats.cut import Array, columns_of
from rolloutfleet.rows import RowLike


def datums(rows: Iterable[RowLike], advantages: Iterable[float | None]) -> list[Any]:
    """A `tinker.Datum` for each row, for the losses `importance_sampling`, `ppo` and `cispo`.

    `advantages` has a number for each row; a row with None gets no datum. Each of `loss_fn_inputs` is [tokens - 1]:
    `target_tokens` int64, `logprobs`, `advantages` and `mask` float32. Advantages are 0 where the mask is, as the
    service takes no mask: the cookbook takes it out before it calls, and so do you. Raises ValueError where rows and
    advantages differ in number; needs the package `tinker`.
    """
    tinker = import_module("tinker")
    return [
        tinker.Datum(
            model_input=tinker.ModelInput.from_ints(inputs.pop("model_input").tolist()),
            loss_fn_inputs={name: tinker.TensorData.from_numpy(values) for name, values in inputs.items()},
        )
        for row, advantage in zip(rows, advantages, strict=True)
        if advantage is not None
        for inputs in [shifted(row, advantage)]
    ]


def shifted(row: RowLike, advantage: float) -> dict[str, Array]:
    """The arrays of a datum, each [tokens - 1]: `model_input`, and those of `loss_fn_inputs`."""
    ids, loss_mask, logprobs, _ = columns_of(row).values()
    mask = loss_mask[1:].astype(np.float32)
    return {
        "model_input": ids[:-1],
        "target_tokens": ids[1:].copy(),
        "logprobs": logprobs[1:].copy(),
        "advantages": np.where(mask == 1, np.float32(advantage), np.float32(0)),
        "mask": mask,
    }
