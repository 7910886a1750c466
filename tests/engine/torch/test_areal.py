"""AReaL's tensors are PyTorch's, and hold the arrays to the bit."""

import torch
from tests.unit.client.formats.drawn import SIX, rollout

from rolloutfleet.formats import areal


def test_tensors_are_the_arrays_to_the_bit() -> None:
    tensors, arrays = areal.tensors(rollout(SIX)), areal.arrays(rollout(SIX))
    assert tensors is not None and arrays is not None
    assert {name: tensor.numpy().tobytes() for name, tensor in tensors.items()} == {
        name: array.tobytes() for name, array in arrays.items()
    }
    assert [tensors[name].dtype for name in ("input_ids", "loss_mask", "logprobs", "attention_mask", "rewards")] == [
        torch.int64,
        torch.int32,
        torch.float32,
        torch.bool,
        torch.float32,
    ]
