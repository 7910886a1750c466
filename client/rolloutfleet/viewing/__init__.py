"""What there is to look at of a session: from a fleet, or from what it left in files."""

from rolloutfleet.viewing.files import Unreadable as Unreadable
from rolloutfleet.viewing.files import open_file as open_file
from rolloutfleet.viewing.safe import safe as safe
from rolloutfleet.viewing.sessions import TOKEN_LISTS as TOKEN_LISTS
from rolloutfleet.viewing.sessions import Recorded as Recorded
from rolloutfleet.viewing.sessions import RecordedBranch as RecordedBranch
from rolloutfleet.viewing.sessions import ending_facts as ending_facts
from rolloutfleet.viewing.sessions import merged as merged
from rolloutfleet.viewing.sessions import said_in as said_in
from rolloutfleet.viewing.texts import NoTokenizer as NoTokenizer
from rolloutfleet.viewing.texts import Texts as Texts
from rolloutfleet.viewing.texts import load_texts as load_texts
from rolloutfleet.viewing.tree import limbs as limbs
