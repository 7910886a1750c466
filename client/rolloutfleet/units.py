"""Durations and byte quantities, as a person writes them in a resource.

The model keeps plain numbers (seconds, bytes), so that no other module parses units; what is written
back to a file is text again, and reads back as the same number.
"""

import math
import re
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

_SECONDS = {
    "ms": Decimal("0.001"),
    "s": Decimal(1),
    "m": Decimal(60),
    "h": Decimal(3600),
    "d": Decimal(86400),
}
_DURATION_PART = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)"
DURATION_PATTERN = rf"^({_DURATION_PART})+$"
_NANOSECOND = Decimal("0.000000001")
_LONGEST = Decimal(100 * 365 * 86400)
LONGEST_TEXT: Final = 64
"""Characters of an amount; the API server wants to know before it works with one."""

_BYTES: dict[str, int] = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate("kMGTPE", 1)},
    **{f"{unit}i": 1024**power for power, unit in enumerate("KMGTPE", 1)},
}
QUANTITY_PATTERN = r"^([0-9]+(?:\.[0-9]+)?)(|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei)$"
_LARGEST = 2**63 - 1


def parse_duration(value: object) -> float:
    """Seconds from `90s`, `1h`, `250ms`, `1h30m`, or a number of seconds.

    Raises ValueError for anything else: negative, not finite, or of an unknown unit.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("a duration is text like 90s, 1h or 250ms, or a number of seconds")
    if isinstance(value, int | float):
        if not math.isfinite(value) or value < 0:
            raise ValueError("a duration is a finite number of seconds, 0 or more")
        seconds = Decimal(repr(value))
    else:
        seconds = _parse_duration_text(_bounded(value))
    if seconds > _LONGEST:
        raise ValueError("a duration is at most 100 years")
    return float(seconds.quantize(_NANOSECOND))


def _bounded(text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise ValueError(f"this is {len(text)} characters long; an amount has at most {LONGEST_TEXT}")
    return text.strip()


def _parse_duration_text(text: str) -> Decimal:
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return Decimal(text)
    if not re.match(DURATION_PATTERN, text):
        raise ValueError(f"{text!r} is not a valid duration; write it like 90s, 1h, 1h30m or 250ms")
    parts = re.findall(_DURATION_PART, text)
    return sum((Decimal(number) * _SECONDS[unit] for number, unit in parts), Decimal(0))


def format_duration(seconds: float) -> str:
    """The shortest single-unit text that `parse_duration` reads as the same number."""
    exact = Decimal(repr(seconds)).quantize(_NANOSECOND)
    for unit in ("d", "h", "m", "s", "ms"):
        count = exact / _SECONDS[unit]
        if exact and count == count.to_integral_value():
            return f"{int(count)}{unit}"
    return f"{exact.normalize():f}s"


def parse_quantity(value: object) -> int:
    """Bytes from `4Gi`, `500M`, `1.5Gi` or a whole number; a fraction of a byte is rounded up.

    Raises ValueError for anything else.
    """
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("an amount of bytes is text like 4Gi or 500M, or a whole number")
    amount = Decimal(value) if isinstance(value, int) else _parse_quantity_text(_bounded(value))
    if not 0 <= amount <= _LARGEST:
        raise ValueError("an amount of bytes is 0 or more, and below 8Ei")
    return int(amount.to_integral_value(rounding=ROUND_CEILING))


def _parse_quantity_text(text: str) -> Decimal:
    match = re.match(QUANTITY_PATTERN, text)
    if match is None:
        hint = _quantity_hint(text)
        raise ValueError(f"{text!r} is not a valid amount of bytes; {hint}")
    number, suffix = match.groups()
    return Decimal(number) * _BYTES[suffix]


def _quantity_hint(text: str) -> str:
    number = re.match(r"[0-9]+(?:\.[0-9]+)?", text)
    if number and text[number.end() :] == "m":
        return f"m means thousandths; {number.group()}M are megabytes, {number.group()}Mi mebibytes"
    if number and (bare := text[number.end() :].removesuffix("B").removesuffix("b")) in _BYTES:
        return f"did you mean {number.group()}{bare}?"
    return "write it like 4Gi or 500M"


def format_quantity(amount: int) -> str:
    """The shortest text, in binary units where they divide it, that `parse_quantity` reads back."""
    for suffix in ("Ei", "Pi", "Ti", "Gi", "Mi", "Ki"):
        if amount and amount % _BYTES[suffix] == 0:
            return f"{amount // _BYTES[suffix]}{suffix}"
    return str(amount)


def _amount_schema(pattern: str) -> dict[str, Any]:
    """Of text with a unit or a whole number, in the form that a CRD has for it."""
    return {
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": pattern,
        "maxLength": LONGEST_TEXT,
        "x-kubernetes-int-or-string": True,
    }


DURATION_SCHEMA: Final = _amount_schema(DURATION_PATTERN)
QUANTITY_SCHEMA: Final = _amount_schema(QUANTITY_PATTERN)

Duration = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str, when_used="json"),
    WithJsonSchema(DURATION_SCHEMA),
]
"""Seconds, kept as a float; read from and written to JSON as text like `90s`."""

Quantity = Annotated[
    int,
    BeforeValidator(parse_quantity),
    PlainSerializer(format_quantity, return_type=str, when_used="json"),
    WithJsonSchema(QUANTITY_SCHEMA),
]
"""Bytes, kept as an int; read from and written to JSON as text like `4Gi`."""
