"""What turns and sessions are counted as: created + imported = the sum of the other terms, at every moment."""

TURNS = "turns"
SESSIONS = "sessions"

CREATED = "created"
IMPORTED = "imported"
LIVE = "live"
LEASED = "leased"
ACKNOWLEDGED = "acknowledged"
DUMPED = "dumped"
DISCARDED = "discarded"
TERMS = (CREATED, IMPORTED, LIVE, LEASED, ACKNOWLEDGED, DUMPED, DISCARDED)
