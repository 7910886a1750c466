"""SGLang's own fields of a body that are no grammars, checked before an engine is given them. Pure.

Bounds are those of SGLang 0.5.23 (`srt/sampling/sampling_params.py`) where it has some.

- `logit_bias`: token id -> what is added to its logit, within the OpenAI API's own range.
- `stop_regex`: patterns at which a generation ends. An engine searches for them at every token, between two steps of
  all its requests, so a pattern that could be tried in too many ways is refused.
- `custom_params`: what an engine's own logit processors and its thinking budget read. Names that begin with two
  underscores are SGLang's own means of transport, and are refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from re import _constants, _parser  # type: ignore[attr-defined]
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
MAX_WAYS: Final = 1 << 18
"""In which a pattern may be tried at one place of a text."""

_OPEN: Final = 64
"""Ways that a repetition without an end counts as."""
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
        ways = _ways(_parser.parse(pattern))
    except (re.error, RecursionError, OverflowError):
        raise InvalidParameter(at, "It is no regular expression that Python's re module takes.") from None
    if ways > MAX_WAYS:
        raise InvalidParameter(
            at,
            "It could be tried in too many ways, which would hold up the engine: leave out references to groups, and "
            "repeat no repetitions or alternatives.",
        )


def _ways(pattern: Iterable[tuple[Any, Any]]) -> float:
    """In how many ways a pattern can be tried at one place, at the most."""
    return math.prod(_ways_of(kind, value) for kind, value in pattern)


def _ways_of(kind: Any, value: Any) -> float:
    if kind in (_constants.GROUPREF, _constants.GROUPREF_EXISTS):
        return math.inf
    if kind is _constants.BRANCH:
        return sum(map(_ways, value[1]))
    if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
        least, most, inner = value
        longest = least + _OPEN if most == _constants.MAXREPEAT else most
        within = _ways(inner)
        if within == 1:
            return float(longest - least + 1)
        return within**longest if longest * math.log2(within) < 64 else math.inf
    if kind in (_constants.SUBPATTERN, _constants.ASSERT, _constants.ASSERT_NOT):
        return _ways(value[-1])
    return _ways(value) if kind is _constants.ATOMIC_GROUP else 1


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
