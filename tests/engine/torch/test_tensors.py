"""Tensors of torch go to real proxies and come back bit for bit."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.torch.keepers import Keepers

from rolloutfleet.remote_tensors.arrays import array_of, form_and_bytes
from rolloutfleet.tensors import CODES, Form

SHAPES: list[tuple[int, ...]] = [(), (0,), (2, 0, 3), (3, 5)]


def bits(tensor: torch.Tensor) -> tuple[Any, ...]:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return tensor.dtype, tuple(tensor.shape), flat.view(torch.uint8).tolist() if flat.numel() else []


def of_all_bits(dtype: str, shape: tuple[int, ...]) -> torch.Tensor:
    form = Form(dtype, shape)
    data = bytearray((at * 37) % (2 if dtype == "bool" else 256) for at in range(form.nbytes))
    tensor: torch.Tensor = array_of(form, data, "torch")
    return tensor


def test_every_type_of_safetensors_and_every_shape_is_exact(keepers: Keepers) -> None:
    put = {f"{dtype}{shape}": of_all_bits(dtype, shape) for dtype in CODES for shape in SHAPES}
    with keepers.tensors() as tensors:
        away = pickle.loads(pickle.dumps(tensors.remotize(put)))
        back = tensors.localize(away)
        assert {name: bits(tensor) for name, tensor in back.items()} == {name: bits(put[name]) for name in put}
        assert tensors.clear_batches(away).deleted.shards == len(put)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4).T,
        torch.arange(20)[::3],
        torch.randn(2, 3, 4)[:, 1:, ::2],
        torch.tensor(3.0, dtype=torch.bfloat16).expand(2, 5),
        torch.randn(3, requires_grad=True),
        torch.tensor([1 + 2j, 3 - 1j], dtype=torch.complex64).conj(),
        torch.tensor([1 + 2j], dtype=torch.complex64).conj().imag,
        torch.nn.Parameter(torch.ones(2, dtype=torch.float16)),
    ],
    ids=lambda tensor: f"{tensor.dtype}{tensor.stride()}",
)
def test_however_the_elements_lie_the_values_are_the_same(tensor: torch.Tensor) -> None:
    form, data = form_and_bytes(tensor)
    back = array_of(form, bytearray(data), "torch")
    assert back.dtype == tensor.dtype and torch.equal(back, tensor.detach().resolve_conj().resolve_neg())


def test_torch_and_numpy_are_one(keepers: Keepers) -> None:
    with keepers.tensors() as here, keepers.tensors(framework="numpy") as there:
        away = here.remotize({"torch": torch.tensor([1.5, -0.0]), "numpy": np.array([True, False])})
        assert here.localize(away)["numpy"].tolist() == [True, False]
        np.testing.assert_array_equal(there.localize(away)["torch"], np.array([1.5, -0.0], np.float32))
        bf16 = here.put(torch.tensor([1.0, 2.0], dtype=torch.bfloat16))
        [held] = there.fetch([bf16])
        assert (held.dtype, held.numpy().tolist()) == ("bfloat16", [0x3F80, 0x4000])
        again = there.put(held)
        assert here.fetch([again])[0].tolist() == [1.0, 2.0]
        assert here.clear_batches(away, bf16, again).complete


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(2, dtype=torch.complex128), "complex128"),
        (torch.zeros(2, 2).to_sparse(), "sparse"),
        (torch.zeros(2, device="meta"), "meta"),
    ],
    ids=["complex128", "sparse", "meta"],
)
def test_what_can_not_be_kept_is_named(tensor: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        form_and_bytes(tensor)


def test_padding_is_trimmed(keepers: Keepers) -> None:
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 0, 0]])
    batch = {
        "attention_mask": mask,
        "ids": torch.arange(10).reshape(2, 5),
        "values": torch.zeros(2, 5, 7),
        "r": torch.zeros(2),
    }
    with keepers.tensors() as tensors:
        away = tensors.remotize(batch)
        assert {name: each.shape for name, each in away.items()} == {
            "attention_mask": (2, 3),
            "ids": (2, 3),
            "values": (2, 3, 7),
            "r": (2,),
        }
        assert torch.equal(tensors.localize(away)["ids"], batch["ids"][:, :3])
        tensors.clear_batches(away)
