"""What Claude Code is asked to do, and what the result is worth. Nothing here knows how it goes about it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

POEM: Final = "Roses are red,\nviolets are blue,\nthis is a file,\nand so are you.\n"


@dataclass(frozen=True, slots=True)
class Task:
    name: str
    prompt: str
    files: dict[str, str]
    """What lies in its folder at the start, by name."""
    worth: Callable[[Path], float]
    """The reward, from 0 to 1, of what the folder holds at the end."""


def _right(wanted: dict[str, str]) -> Callable[[Path], float]:
    """The share of files that hold what is wanted, by name, but for white space."""

    def worth(folder: Path) -> float:
        found = {name: (folder / name).read_text(errors="replace") for name in wanted if (folder / name).is_file()}
        return sum(text.split() == wanted[name].split() for name, text in found.items()) / len(wanted)

    return worth


TASKS: Final = (
    Task(
        "fix-greeting",
        "Fix the typo in greeting.txt.",
        files={"greeting.txt": "Helo, world!\n"},
        worth=_right({"greeting.txt": "Hello, world!"}),
    ),
    Task(
        "count-lines",
        "Write the number of lines of poem.txt into lines.txt.",
        files={"poem.txt": POEM},
        worth=_right({"lines.txt": "4"}),
    ),
    Task(
        "count-words",
        "Write the number of words of poem.txt into words.txt.",
        files={"poem.txt": POEM},
        worth=_right({"words.txt": "14"}),
    ),
    Task(
        "two-helpers",
        "Have two agents write a.txt and b.txt, each holding its own name.",
        files={},
        worth=_right({"a.txt": "a.txt", "b.txt": "b.txt"}),
    ),
)
