"""A row as prompt and response, which is how most trainers hold a sequence."""

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rolloutfleet.rows import RowLike, check_together, tensor_of

Array = NDArray[Any]

_NAMES: Final = ("input_ids", "loss_mask", "logprobs", "versions")


class Cut(NamedTuple):
    """The two parts of a row. Views of its tensors, so copy them before you change them."""

    prompt_ids: Array
    """int64 [prompt]: all before the first trained token; all of the row where none is trained."""
    response_ids: Array
    """int64 [response]: from the first trained token on, with what tools and users said between later ones."""
    response_mask: Array
    """uint8 [response]: 1 on what is trained."""
    response_logprobs: Array
    """float32 [response]: the engine's; 0 where the mask is 0."""
    response_versions: Array
    """int32 [response]: of the weights that sampled each token; -1 where the mask is 0."""


def cut(row: RowLike, *, longest_prompt: int | None = None) -> Cut:
    """The row, cut at its first trained token, or before, so that the prompt has at most `longest_prompt` tokens.

    What no longer goes into the prompt stands in the response with mask 0: no token is lost, each keeps its context.
    Raises ValueError for tensors that are missing or don't belong together, TypeError for references to shards.
    """
    ids, mask, logprobs, versions = columns_of(row).values()
    trained = np.flatnonzero(mask)
    at = int(trained[0]) if trained.size else len(mask)
    if longest_prompt is not None:
        at = min(at, longest_prompt)
    return Cut(ids[:at], ids[at:], mask[at:], logprobs[at:], versions[at:])


def columns_of(row: RowLike) -> dict[str, Array]:
    """`input_ids`, `loss_mask`, `logprobs` and `versions`, in that order. Raises as `cut` does."""
    columns = {name: np.asarray(tensor_of(row, name, whose="this rollout")) for name in _NAMES}
    check_together(columns, whose="this rollout")
    return columns
