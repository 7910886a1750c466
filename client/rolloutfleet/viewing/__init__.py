"""What there is to look at of a session: from a fleet, or from what it left in files."""

from rolloutfleet.viewing.files import Unreadable, open_file
from rolloutfleet.viewing.safe import safe
from rolloutfleet.viewing.sessions import TOKEN_LISTS, Recorded, RecordedBranch, merged
from rolloutfleet.viewing.texts import NoTokenizer, Texts, load_texts
from rolloutfleet.viewing.tree import limbs

__all__ = [
    "TOKEN_LISTS",
    "NoTokenizer",
    "Recorded",
    "RecordedBranch",
    "Texts",
    "Unreadable",
    "limbs",
    "load_texts",
    "merged",
    "open_file",
    "safe",
]
