"""JSON as RFC 8259 has it: without NaN and Infinity, which Python's `json` reads, and with one error for the rest.

`json.loads` raises RecursionError too, for deep nesting, and ValueError for a number of over 4,300 digits.
"""

import json
from typing import Any


def json_value(text: str) -> Any:
    """The value of JSON text. Raises json.JSONDecodeError, for all that is not JSON."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise json.JSONDecodeError(str(error), "", 0) from error


def refuse_constant(name: str) -> None:
    """For `parse_constant`. Raises ValueError."""
    raise ValueError(f"{name} is not JSON")
