"""Looking on: a session's conversation with its tokens, and turns as they are committed."""

from typing import Any, Final, Literal

from pydantic import Field

from rolloutfleet.wire.base import Answered, Reply
from rolloutfleet.wire.sessions import TurnFacts

EVENTS_MEDIA_TYPE: Final = "text/event-stream"
LAST_EVENT_ID_HEADER: Final = "Last-Event-ID"
TOKENS_A_PAGE: Final = 4096
"""Tokens of a conversation's page at the most."""

TrajectoryState = Literal["ready", "leased", "acknowledged", "discarded", "importing", "elsewhere"]
LeaseState = Literal["open", "released", "expired", "acknowledged"]


class ShownMessage(Reply):
    """A message of a conversation, as it was rendered."""

    index: int
    """Its place in the conversation, from 0."""
    message: dict[str, Any]
    cut: int | None = None
    """How many bytes its JSON has, where that is too large for a page: its role and the beginning of its content are
    here. None: it is whole."""


class ShownTokens(Reply):
    """Consecutive tokens of what a turn added to its parent: new ones of its prompt, then its output. One entry a token
    in each list, named as in exports."""

    start: int
    """How many tokens of the turn stand before them."""
    input_ids: list[int]
    texts: list[str | None]
    """What each stands for. A character that is split over several tokens is the first one's, and None the others'."""
    logprobs: list[float]
    versions: list[int]
    """-1 in the prompt."""
    loss_mask: list[int]
    """1 where the token was sampled for a turn that is trained: in one row of an export, however many share it."""
    annotations: dict[str, list[float | None]] = Field(default_factory=dict)
    """What a trainer said of them, by series: None in the prompt, and where it said nothing of a token. Empty where
    none of these tokens is output."""


class TurnTiming(Reply):
    """Seconds of each step that a turn took, in order."""

    queue: float
    tokenise_in: float
    pause: float
    engine: float
    tokenise_out: float


class ShownLease(Reply):
    """A lease under which a turn's trajectory was exported."""

    lease_id: str
    state: LeaseState
    leased_at: float | None
    """None: by an earlier version, which didn't note it."""
    acknowledged_at: float | None
    """None: not acknowledged, or by an earlier version."""


class ShownTurn(TurnFacts):
    """A turn, with as much of its messages and tokens as the page holds."""

    number: int
    """1, 2, ... in the order in which the session's turns were committed."""
    trajectory_id: str | None
    trajectory_state: TrajectoryState | None
    discarded: bool
    """It alone, as an orphan."""
    delivered: bool
    created_at: float
    prompt_tokens: int
    completion_tokens: int
    new_prompt_tokens: int
    """Of its prompt, those that its parent's prompt and output don't cover."""
    timing: TurnTiming | None
    """None of a turn of an earlier version."""
    leases: list[ShownLease]
    tools: list[Any] | None
    """Of a conversation's first turn, where they are not too large for a page."""
    template_kwargs: dict[str, Any] | None
    messages: list[ShownMessage]
    """Those that its request added, and its output as the last."""
    tokens: ShownTokens
    note: str | None = None
    """The trainer's."""


class Conversation(Answered):
    """GET /sessions/{id}/conversation: a page of one branch, from the root on."""

    session_id: str
    branch: str | None
    """The last turn of the branch; None of a session without turns."""
    turns: list[ShownTurn]
    """One that does not fit into a page goes on in the next one, with the rest of its messages and tokens."""
    cursor: str | None
    """None on the last page."""


class CommittedTurn(Reply):
    """The data of a `commit` of GET /events."""

    seq: int
    """1, 2, ... in order of commit since the proxy's start, behind those that it remembers from before."""
    session_id: str
    turn_id: str
    parent_id: str | None
