"""Half a character in a body: text that a client cut by UTF-16 units (`"\\ud83d"`), or by bytes. Pure.

In what is said, and what tools are described by, U+FFFD stands for it: an agent that cuts a tool's output so would have
its run ended by a 400. What names something is left to be refused, as two names could become one.
"""

import json
import re
from typing import Any, Final

import msgspec

from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter

_SAID: Final = frozenset(("messages", "system", "input", "instructions"))
"""Fields of a body, of all APIs, that the conversation stands in."""
_TEXTS: Final = frozenset(
    (
        *("content", "text", "reasoning_content", "reasoning", "thinking", "summary", "refusal"),
        *("arguments", "input", "output", "system", "instructions", "title", "context", "data", "source"),
    )
)
"""Fields within it whose strings are text, in lists too."""
_DESCRIPTION: Final = frozenset(("description",))
_ARGUMENTS: Final = "input"
"""A call's, as an object, in which every string is text."""
_LONGEST_PATH: Final = 200
_HALVES = re.compile("[\ud800-\udfff]+")
_NO_TEXT: Final[frozenset[str]] = frozenset()


def mended(body: bytes) -> tuple[bytes, list[str]]:
    """A body with U+FFFD in place of halves, and the paths of the texts that had some.

    Raises InvalidParameter for halves elsewhere; ValueError and RecursionError for what is no JSON.
    """
    # A byte that is no part of a character becomes a lone surrogate, as an escape does.
    value = json.loads(body.decode(errors="surrogateescape"), parse_constant=_refuse, parse_float=_finite)
    if type(value) is not dict:
        raise ValueError
    paths: list[str] = []
    for name, each in value.items():
        _check_name(name, at=None)
        texts = _TEXTS if name in _SAID else _DESCRIPTION if name == "tools" else _NO_TEXT
        value[name] = _mend(each, paths, texts, at=name, is_text=name in texts)
    return msgspec.json.encode(value), paths


def half_character(at: str | None) -> DomainError:
    """The error for half a character where there must be none."""
    return InvalidParameter(at and at[:_LONGEST_PATH], "It has half a character: a lone surrogate, or cut UTF-8.")


def _mend(value: Any, paths: list[str], texts: frozenset[str], *, at: str, is_text: bool, free: bool = False) -> Any:
    """`is_text` is whether a string here is text, `free` whether all further down are."""
    if type(value) is str:
        if not _has_halves(value):
            return value
        if not is_text:
            raise half_character(at)
        paths.append(at)
        return _HALVES.sub("\N{REPLACEMENT CHARACTER}", value)
    if type(value) is list:
        for index, each in enumerate(value):
            value[index] = _mend(each, paths, texts, at=f"{at}[{index}]", is_text=is_text, free=free)
    elif type(value) is dict:
        for name, each in value.items():
            _check_name(name, at=at)
            below = free or (name == _ARGUMENTS and name in texts)
            value[name] = _mend(each, paths, texts, at=f"{at}.{name}", is_text=below or name in texts, free=below)
    return value


def _check_name(name: str, *, at: str | None) -> None:
    if _has_halves(name):
        raise half_character(at)


def _has_halves(text: str) -> bool:
    try:
        text.encode()  # A search by pattern takes many times longer.
    except UnicodeEncodeError:
        return True
    return False


def _refuse(constant: str) -> None:
    """Python reads `NaN` and `Infinity`; JSON has neither."""
    raise ValueError(constant)


def _finite(number: str) -> float:
    value = float(number)
    if value in (float("inf"), float("-inf")):
        raise ValueError(number)
    return value
