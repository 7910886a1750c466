"""The sampling parameters that a trainer may own, and their rules: the same in requests and in the resource."""

import json
from collections.abc import Iterator
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue

LARGEST_COUNT: Final = 2**31 - 1
TEMPLATE_ARGUMENTS_LIMIT: Final = 16 * 1024
"""Bytes of `chat_template_kwargs` as JSON."""
_DEEPEST: Final = 64
"""Levels of objects and arrays, as in an agent's request."""


def _check_top_k(top_k: int) -> int:
    if top_k == 0:
        raise ValueError("must be -1 (off) or at least 1, not 0")
    return top_k


def _check_template_arguments(given: dict[str, JsonValue]) -> dict[str, JsonValue]:
    level: list[Any] = [given]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _within(outer) if isinstance(inner, dict | list)]
    if level:
        raise ValueError(f"must not be nested deeper than {_DEEPEST} levels")
    check_size(given, most=TEMPLATE_ARGUMENTS_LIMIT)
    return given


def check_size(given: dict[str, JsonValue], *, most: int) -> None:
    """Raises ValueError for what is not JSON, or has more bytes."""
    try:
        size = len(json.dumps(given, allow_nan=False, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise ValueError("must be text of whole characters throughout") from None
    except (ValueError, RecursionError):
        raise ValueError("must hold finite numbers only, and no endless depth") from None
    if size > most:
        raise ValueError(f"must be at most {most} bytes of JSON, not {size}")


def _within(value: dict[str, Any] | list[Any]) -> Iterator[Any]:
    yield from value.values() if isinstance(value, dict) else value


class SamplingFields(BaseModel):
    """A value for each parameter, or none. Ranges are those of an agent's chat request."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    temperature: Annotated[float, Field(ge=0, le=100)] | None = None
    """The temperature."""
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    """The share of the distribution that may be drawn from."""
    top_k: Annotated[int, Field(ge=-1, le=LARGEST_COUNT), AfterValidator(_check_top_k)] | None = None
    """How many of the likeliest tokens may be drawn; -1: all."""
    max_tokens: Annotated[int, Field(ge=1, le=LARGEST_COUNT)] | None = None
    """The most tokens of one answer. Less where the model's context leaves less."""
    chat_template_kwargs: Annotated[dict[str, JsonValue], AfterValidator(_check_template_arguments)] | None = None
    """Arguments of the chat format, such as `enable_thinking` or `reasoning_effort`."""
