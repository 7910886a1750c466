"""What one turn is made of, from beginning to end."""

from collections.abc import Mapping
from dataclasses import dataclass

from rolloutfleet_proxy.capture.retries import Attempt
from rolloutfleet_proxy.dialects.base import TurnRequest
from rolloutfleet_proxy.domain.lineage import Lineage
from rolloutfleet_proxy.domain.messages import Conversation
from rolloutfleet_proxy.sessions.calls import Call
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.telemetry.request_ids import REQUEST_ID


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnJob:
    """A turn to be made for a session."""

    session: Session
    request: TurnRequest
    conversation: Conversation
    """The digests of the messages that came with it."""
    attempt: Attempt
    lineage: Lineage
    headers: Mapping[str, str]
    """The request's, by their names in lower case."""
    call: Call
    began: float
    """Seconds since the epoch."""

    @property
    def names(self) -> dict[str, str]:
        """Of request, session and turn, as events of the log have them."""
        request = self.headers.get(REQUEST_ID, "")
        return {"request_id": request, "session_id": self.session.name, "turn_id": self.call.turn_name}
