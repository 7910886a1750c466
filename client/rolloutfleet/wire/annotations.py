"""What a trainer says of turns afterwards: POST /sessions/{id}/annotations.

The body is safetensors (`rolloutfleet.tensors`): tensors named `TURN_ID/SERIES`, each float32 with one number for each
output token of the turn, and notes as JSON `{TURN_ID: text}` under `notes` in the header's metadata.
"""

import re
from typing import Final

from rolloutfleet.wire.base import Answered

ANNOTATIONS_BYTES: Final = 16 << 20
"""Of one call's body."""
NOTES: Final = "notes"
"""Where the metadata has them."""
NOTE_BYTES: Final = 4096
"""Of a turn's note, as UTF-8."""
SERIES_A_TURN: Final = 16
SERIES_NAME: Final = re.compile(r"[A-Za-z0-9_.\-]{1,64}")


class AnnotatedSession(Answered):
    """How many series and notes were kept."""

    session_id: str
    series: int
    notes: int
