"""Text that a model or a tool made, for a terminal: what would steer it is shown instead. Pure.

Control characters move the cursor, change colours and titles, or answer for the user; directional marks make a line
read otherwise than it is. Both are written as Python does, `\\x1b` and `\\u202e`. Line breaks and tabs stay.
"""

import re
import unicodedata
from typing import Final

_KEPT: Final = "\n\t\u200c\u200d"
"""Joiners are within emoji and words of some scripts, and steer nothing."""
_SUSPECT: Final = re.compile(r"[^\t\n -~\u00a1-\u00ac\u00ae-\u024f\u4e00-\u9fff]")


def safe(text: object) -> str:
    """The text with all else that is not to be seen written out."""
    return _SUSPECT.sub(lambda found: _written(found[0]), str(text))


def _written(character: str) -> str:
    if character in _KEPT or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return character
    return character.encode("unicode_escape").decode()
