"""What the log says of calls and of the process: every event, and its fields.

Times are milliseconds, -1 for what was not reached. No field may hold a key, a header's value but for a request id
that was checked, what was said in a conversation, or what an engine said.
"""

import logging
from typing import Protocol

from msgspec import Struct

from rolloutfleet_proxy.telemetry import logger


def _named(name: str) -> str:
    return "".join(f"_{each.lower()}" if each.isupper() else each for each in name).lstrip("_")


class Event(Struct, frozen=True, kw_only=True, gc=False, tag_field="event", tag=_named):
    """A line of the log; its name is the class's, in snake case."""


class CallStarted(Event, frozen=True, kw_only=True, gc=False):
    """A chat call has been read."""

    call_id: str
    request_id: str
    session_id: str
    messages: int
    stream: bool
    in_flight_before: int


class CallEnded(Event, frozen=True, kw_only=True, gc=False):
    """A chat call is over, one line for each, whatever became of it."""

    call_id: str
    request_id: str
    session_id: str
    turn_id: str
    messages: int
    stream: bool
    status: int
    outcome: str
    in_flight_after: int
    held_ms: float
    queue_ms: float
    tokenise_in_ms: float
    pause_ms: float
    engine_ms: float
    tokenise_out_ms: float
    commit_ms: float
    total_ms: float
    prompt_tokens: int
    completion_tokens: int


class TurnEndedUnwaited(Event, frozen=True, kw_only=True, gc=False):
    """A generation ended that nobody waited for any more: its caller had left, and no retry came."""

    request_id: str
    session_id: str
    turn_id: str
    outcome: str


class TurnBranched(Event, frozen=True, kw_only=True, gc=False):
    """A turn was committed that is a fork: `field` of `message` (-1: of none) differs from an earlier turn."""

    request_id: str
    session_id: str
    turn_id: str
    message: int
    field: str


class PassStarted(Event, frozen=True, kw_only=True, gc=False):
    """A chat call goes to the proxy that owns its session, which says more of it."""

    call_id: str
    request_id: str
    passed_to: int


class PassEnded(Event, frozen=True, kw_only=True, gc=False):
    """A chat call that was passed on is over."""

    call_id: str
    request_id: str
    passed_to: int
    status: int
    outcome: str
    held_ms: float
    total_ms: float


class RequestEnded(Event, frozen=True, kw_only=True, gc=False):
    """Any other request is over. `route` is the path's template, `passed_to` -1 where it was answered here."""

    request_id: str
    method: str
    route: str
    status: int
    passed_to: int
    total_ms: float


class EngineFailure(Event, frozen=True, kw_only=True, gc=False):
    """A request to the gateway brought no turn."""

    request_id: str
    session_id: str
    turn_id: str
    url: str
    elapsed_ms: float
    error_type: str
    code: str


class Stats(Event, frozen=True, kw_only=True, gc=False):
    """Every so often: how the process is."""

    requests: int
    since_last: int
    in_flight: int
    turns: int
    sessions_open: int
    rss_bytes: int
    vms_bytes: int
    log_dropped: int
    late_ms: float


class LogDropped(Event, frozen=True, kw_only=True, gc=False):
    """Lines were lost, because they came faster than they could be written."""

    lines: int


class Sink(Protocol):
    """Where events go."""

    @property
    def dropped(self) -> int:
        """Lines lost since the process started."""

    @property
    def waiting(self) -> int:
        """Lines that wait to be written."""

    def event(self, level: int, event: Event) -> None: ...
    def flush(self, *, timeout: float) -> None:
        """Write what waits, for at most `timeout` seconds: for those who end the process at once."""


class _Logging:
    """Before the log is set up, and in programs that never do: events go through `logging`."""

    dropped = 0
    waiting = 0

    def event(self, level: int, event: Event) -> None:
        logger.log(level, "%s", event)

    def flush(self, *, timeout: float) -> None:
        pass


_sink: Sink = _Logging()


def direct(sink: Sink | None) -> None:
    """Send events to `sink` from now on; None for `logging`."""
    global _sink
    _sink = sink or _Logging()


def emit(event: Event, level: int = logging.INFO) -> None:
    """Write an event down. Cheap, and never waits."""
    _sink.event(level, event)


def sink() -> Sink:
    """Where events go now."""
    return _sink
