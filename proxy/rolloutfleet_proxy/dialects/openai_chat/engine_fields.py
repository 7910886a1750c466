"""SGLang's own fields of a body that are no grammars, checked before an engine is given them. Pure.

Bounds are those of SGLang 0.5.23 (`srt/sampling/sampling_params.py`) where it has some.

- `logit_bias`: token id -> what is added to its logit, within the OpenAI API's own range.
- `stop_regex`: patterns at which a generation ends. How long a search for one takes depends on the turn's tokens
  (`capture.engine_bounds`).
- `custom_params`: what an engine's own logit processors and its thinking budget read. Names that begin with two
  underscores are SGLang's own means of transport, and are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta as Rule

from rolloutfleet_proxy.domain.errors import InvalidParameter

MAX_BIASED_TOKENS: Final = 1024
MAX_BIAS: Final = 100
MAX_PATTERNS: Final = 32
MAX_PATTERN_BYTES: Final = 256
MAX_CUSTOM_PARAMS: Final = 64
MAX_CUSTOM_BYTES: Final = 64 << 10
_MAX_INT32 = 2**31 - 1
_MAX_INT64 = 2**63 - 1

TokenId = Annotated[int, Rule(ge=0, le=_MAX_INT32)]
Biases = Annotated[dict[TokenId, Annotated[float, Rule(ge=-MAX_BIAS, le=MAX_BIAS)]], Rule(max_length=MAX_BIASED_TOKENS)]
Pattern = Annotated[str, Rule(min_length=1, max_length=MAX_PATTERN_BYTES)]
Patterns = Annotated[list[Pattern], Rule(max_length=MAX_PATTERNS)] | Pattern
_Scalar = None | bool | Annotated[int, Rule(ge=-_MAX_INT64, le=_MAX_INT64)] | float | str
CustomParams = Annotated[dict[str, _Scalar | list[_Scalar] | dict[str, _Scalar]], Rule(max_length=MAX_CUSTOM_PARAMS)]


def logit_bias(given: Mapping[int, float], *, vocabulary_size: int | None) -> dict[str, float]:
    """SGLang's `logit_bias`. Raises InvalidParameter for a token that the model doesn't have."""
    if vocabulary_size is not None and given and max(given) >= vocabulary_size:
        raise InvalidParameter(
            f"logit_bias.{max(given)}", f"The model has no token {max(given)}: its ids end at {vocabulary_size - 1}."
        )
    return {str(token_id): bias for token_id, bias in given.items()}


def stop_patterns(given: list[str] | str) -> list[str]:
    """SGLang's `stop_regex`. Raises InvalidParameter."""
    patterns = [given] if isinstance(given, str) else given
    for index, pattern in enumerate(patterns):
        _check_pattern(pattern, at="stop_regex" if isinstance(given, str) else f"stop_regex[{index}]")
    return patterns


def _check_pattern(pattern: str, *, at: str) -> None:
    if len(pattern.encode(errors="surrogatepass")) > MAX_PATTERN_BYTES:
        raise InvalidParameter(at, f"A pattern has at most {MAX_PATTERN_BYTES} bytes.")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        raise InvalidParameter(at, "It is no regular expression that Python's re module takes.") from None


def custom_params(given: dict[str, Any]) -> dict[str, Any]:
    """SGLang's `custom_params`. Raises InvalidParameter."""
    for name in given:
        if name.startswith("__"):
            raise InvalidParameter(
                f"custom_params.{name[:64]}", "Names that begin with two underscores are the engine's own."
            )
    if len(msgspec.json.encode(given)) > MAX_CUSTOM_BYTES:
        raise InvalidParameter("custom_params", f"As JSON it has at most {MAX_CUSTOM_BYTES} bytes.")
    return given
