"""Output to terminals without Unicode: the commands' own marks in ASCII, any other character as Python writes it."""

import codecs
import io
import os
import sys
from pathlib import Path
from typing import Final, TextIO

_MARKS: Final = {
    "…": "...",
    "→": "->",
    "●": "*",
    "○": "o",
    "└": "`",
    "─": "-",
    "·": "-",
    "↵": "\\n",
    "≥": ">=",
    "≤": "<=",
    "█": "#",
    "░": ".",
    "✓": "+",
    "✗": "x",
}
_HANDLER: Final = "rolloutfleet.marks"


def allow_any_terminal() -> None:
    """Nothing that is written to standard or error output fails for its characters, or because it is closed (`>&-`)."""
    codecs.register_error(_HANDLER, _in_its_place)
    sys.stdout, sys.stderr = (each or Path(os.devnull).open("w") for each in (sys.stdout, sys.stderr))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if not has_unicode(stream) and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_HANDLER)


def has_unicode(stream: TextIO) -> bool:
    """Whether all characters can be written there."""
    return stream.encoding is None or stream.encoding.lower().startswith("utf")


def _in_its_place(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    lost = error.object[error.start : error.end]
    return "".join(_MARKS.get(each) or each.encode("ascii", "backslashreplace").decode() for each in lost), error.end
