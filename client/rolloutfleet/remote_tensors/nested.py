"""Tensors and references wherever they are in nested structures: dict, list, tuple, dataclass, TensorDict. Pure.

What is like a TensorDict has `batch_size` and `items()`, and is made by `kind(entries, batch_size=…)`, as those of
https://docs.pytorch.org/tensordict are. It can't hold references, so a `RemoteTensorDict` stands in for it.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np

from rolloutfleet.dumps.tensors import Tensor
from rolloutfleet.remote_tensors.arrays import is_array
from rolloutfleet.tensors import REMOTE_TENSOR, RemoteTensor

ATTENTION_MASK: Final = "attention_mask"


@dataclass(frozen=True, slots=True)
class RemoteTensorDict:
    """A TensorDict whose tensors are kept elsewhere."""

    kind: type
    """What it is made by again."""
    batch_size: tuple[int, ...]
    entries: dict[str, Any]


def mapped(value: Any, change: Callable[[Any], Any], *, tensor_dict: Callable[..., Any]) -> Any:
    """The same structure with `change` of each leaf: tensors, references, and all that holds nothing else.

    Mappings come back as dict, and what is like a TensorDict as `tensor_dict(kind, batch_size, entries)`.
    """
    if is_array(value) or as_reference(value) is not None:
        return change(value)
    again = partial(mapped, change=change, tensor_dict=tensor_dict)
    if isinstance(value, RemoteTensorDict):
        return tensor_dict(value.kind, value.batch_size, again(value.entries))
    if is_tensor_dict(value):
        return tensor_dict(type(value), tuple(value.batch_size), {name: again(item) for name, item in value.items()})
    if isinstance(value, Mapping):
        return {name: again(item) for name, item in value.items()}
    return change(value) if _holds_nothing(value) else _rebuilt(value, again)


def leaves(value: Any) -> Iterator[Any]:
    """Every leaf, in order; references as `RemoteTensor`, also those in their JSON form."""
    reference = as_reference(value)
    if reference is not None:
        yield reference
    elif isinstance(value, RemoteTensorDict):
        yield from leaves(value.entries)
    elif not is_array(value) and (is_tensor_dict(value) or isinstance(value, Mapping)):
        for _, item in value.items():
            yield from leaves(item)
    elif is_array(value) or _holds_nothing(value):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from leaves(item)
    else:
        for item in _fields(value).values():
            yield from leaves(item)


def as_reference(value: Any) -> RemoteTensor | None:
    """The reference that this is, as an object or in JSON; None where it is none."""
    if isinstance(value, RemoteTensor):
        return value
    if type(value) is dict and value.get("type") == REMOTE_TENSOR:
        try:
            return RemoteTensor.from_json(value)
        except ValueError:
            return None
    return None


def tensor_dict(kind: type, batch_size: tuple[int, ...], entries: dict[str, Any]) -> Any:
    """A TensorDict with these tensors."""
    return kind(entries, batch_size=batch_size)


def is_tensor_dict(value: Any) -> bool:
    # Those of the tensordict package are mappings, too.
    return not isinstance(value, dict | type) and hasattr(value, "batch_size") and callable(getattr(value, "items", 0))


def trimmed(value: Any) -> Any:
    """The same structure without the columns that nothing attends to.

    In each dict with an `attention_mask` [rows, columns], the columns behind the last attended one are cut off the mask
    and off all tensors [rows, columns, …] beside it.
    """
    if is_array(value) or isinstance(value, RemoteTensor | RemoteTensorDict):
        return value
    if not (is_tensor_dict(value) or isinstance(value, Mapping)):
        return value if _holds_nothing(value) else _rebuilt(value, trimmed)
    entries = {name: trimmed(item) for name, item in value.items()}
    mask = entries.get(ATTENTION_MASK)
    shape, kept = _attended(mask)
    if shape is None or kept == shape[1] or any(_spans(item, shape) for item in entries.values()):
        return _like(value, entries)
    entries = {name: item[:, :kept] if _begins_with(item, shape) else item for name, item in entries.items()}
    return _like(value, entries, cut=shape, kept=kept)


def _like(value: Any, entries: dict[str, Any], *, cut: tuple[int, int] | None = None, kept: int = 0) -> Any:
    """A dict with these entries, or a TensorDict; of a batch size that was cut, so many columns are left."""
    if not is_tensor_dict(value):
        return entries
    batch_size = tuple(value.batch_size)
    if batch_size[:2] == cut:
        batch_size = (batch_size[0], kept, *batch_size[2:])
    return tensor_dict(type(value), batch_size, entries)


def _holds_nothing(value: Any) -> bool:
    """Whether it is neither list, nor tuple, nor dataclass."""
    return not isinstance(value, list | tuple) and (isinstance(value, type) or not dataclasses.is_dataclass(value))


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """A list, tuple or dataclass with `change` of what it holds."""
    if isinstance(value, list):
        return [change(item) for item in value]
    if isinstance(value, tuple):
        items = [change(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    return dataclasses.replace(value, **{name: change(item) for name, item in _fields(value).items()})


def _fields(value: Any) -> dict[str, Any]:
    """What a dataclass is made of."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}


def _attended(mask: Any) -> tuple[tuple[int, int] | None, int]:
    """The mask's shape, and how many columns are left; no shape where it is not a mask."""
    if not is_array(mask) or isinstance(mask, Tensor) or len(mask.shape) != 2:
        return None, 0
    columns = np.asarray((mask != 0).any(0).tolist(), bool)
    attended = np.flatnonzero(columns)
    return (mask.shape[0], mask.shape[1]), int(attended[-1]) + 1 if len(attended) else 0


def _spans(value: Any, shape: tuple[int, int]) -> bool:
    """Whether it is a TensorDict with all columns, which would no longer fit beside those that are cut."""
    return is_tensor_dict(value) and tuple(value.batch_size[:2]) == shape


def _begins_with(value: Any, shape: tuple[int, int]) -> bool:
    return is_array(value) and not isinstance(value, Tensor) and tuple(value.shape[:2]) == shape
