"""A chat call as the log and the metrics tell it: one line when it has been read, exactly one when it is over."""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final

from rolloutfleet.errors import CANCELLED
from rolloutfleet_proxy.ids import random_hex
from rolloutfleet_proxy.telemetry.events import CallEnded, CallStarted, PassEnded, PassStarted, emit
from rolloutfleet_proxy.telemetry.metrics import COMMITTED, Metrics
from rolloutfleet_proxy.telemetry.phases import DONE, Phases

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]

ANSWERED: Final = "answered"
CUT_SHORT: Final = "cut_short"
"""A call that was passed on: the whole answer went back, or the caller or the owner left before that."""

LONGEST_NAME: Final = 80
"""Characters of a session's name: before it is found, it is whatever a path holds."""
_NOTHING_REACHED = [-1.0] * DONE


class ChatCall:
    """One call of a caller, which may make a turn, join one, or be given one again."""

    __slots__ = (
        "_arrived",
        "_clock",
        "_held",
        "_in_flight_before",
        "_metrics",
        "_read",
        "call_id",
        "completion_tokens",
        "messages",
        "outcome",
        "phases",
        "prompt_tokens",
        "request_id",
        "role",
        "session_id",
        "status",
        "stream",
        "turn_id",
    )

    def __init__(
        self, metrics: Metrics, *, request_id: str, session_id: str = "", clock: Callable[[], float] = perf_counter
    ) -> None:
        self.call_id = random_hex()[:8]
        self.request_id = request_id
        self.session_id = session_id[:LONGEST_NAME]
        self.turn_id = ""
        self.messages = -1
        self.stream = False
        self.status = -1
        """Sent to the caller; -1 where nothing was."""
        self.role = COMMITTED
        """The outcome if all goes well."""
        self.outcome = CANCELLED
        self.phases: Phases | None = None
        """Of the turn that this call makes or waits for."""
        self.prompt_tokens = -1
        self.completion_tokens = -1
        self._metrics = metrics
        self._clock = clock
        self._arrived = clock()
        self._held = -1.0
        self._in_flight_before = metrics.in_flight
        self._read = False

    def read(self, *, session_id: str, messages: int, stream: bool) -> None:
        """What is asked is known."""
        self.session_id, self.messages, self.stream = session_id, messages, stream
        self._start()

    @contextmanager
    def held(self) -> Iterator[None]:
        """A drain holds the call until the block ends; more than once adds up."""
        began = self._clock()
        try:
            yield
        finally:
            self._held = max(self._held, 0.0) + self._clock() - began

    def waits_for(self, turn_id: str, phases: Phases) -> None:
        self.turn_id, self.phases = turn_id, phases

    def answered(self, turn_id: str, *, prompt_tokens: int, completion_tokens: int) -> None:
        """The whole answer has been sent."""
        self.turn_id, self.outcome = turn_id, self.role
        self.prompt_tokens, self.completion_tokens = prompt_tokens, completion_tokens

    def ended(self) -> None:
        """Nothing more will be sent."""
        if not self._read:
            self._start()
        total = self._clock() - self._arrived
        self._metrics.call_ended(self.outcome, total)
        phases = self.phases
        if phases is not None and self.prompt_tokens < 0:
            self.prompt_tokens = phases.prompt_tokens
        queue, tokenise_in, pause, engine, tokenise_out, commit = (
            _NOTHING_REACHED if phases is None else phases.seconds()
        )
        emit(
            CallEnded(
                call_id=self.call_id,
                request_id=self.request_id,
                session_id=self.session_id,
                turn_id=self.turn_id,
                messages=self.messages,
                stream=self.stream,
                status=self.status,
                outcome=self.outcome,
                in_flight_after=self._metrics.in_flight,
                held_ms=milliseconds(self._held),
                queue_ms=milliseconds(queue),
                tokenise_in_ms=milliseconds(tokenise_in),
                pause_ms=milliseconds(pause),
                engine_ms=milliseconds(engine),
                tokenise_out_ms=milliseconds(tokenise_out),
                commit_ms=milliseconds(commit),
                total_ms=milliseconds(total),
                prompt_tokens=self.prompt_tokens,
                completion_tokens=self.completion_tokens,
            )
        )

    def _start(self) -> None:
        self._read = True
        emit(
            CallStarted(
                call_id=self.call_id,
                request_id=self.request_id,
                session_id=self.session_id,
                messages=self.messages,
                stream=self.stream,
                in_flight_before=self._in_flight_before,
            )
        )


class PassedCall:
    """A chat call of another proxy's session: that proxy tells of the call, this one that it passed it on."""

    __slots__ = ("_began", "_call_id", "_clock", "_metrics", "_over", "_request_id", "_status", "_to", "outcome")

    def __init__(
        self, metrics: Metrics, *, request_id: str, to: int, clock: Callable[[], float] = perf_counter
    ) -> None:
        self.outcome = ""
        """An error of this proxy's; else it follows from how far the owner's answer came."""
        self._metrics = metrics
        self._request_id = request_id
        self._to = to
        self._clock = clock
        self._began = clock()
        self._call_id = random_hex()[:8]
        self._status = -1
        self._over = False
        emit(PassStarted(call_id=self._call_id, request_id=request_id, passed_to=to))

    def watched(self, send: Send) -> Send:
        """`send`, with a note of what is sent."""

        def noted(message: Message) -> Awaitable[None]:
            if message["type"] == "http.response.start":
                self._status = message["status"]
            elif not message.get("more_body", False):
                self._over = True
            return send(message)

        return noted

    def ended(self) -> None:
        """Nothing more will be sent."""
        outcome = self.outcome or (ANSWERED if self._over else CUT_SHORT)
        self._metrics.calls_passed_on.labels(outcome).inc()
        emit(
            PassEnded(
                call_id=self._call_id,
                request_id=self._request_id,
                passed_to=self._to,
                status=self._status,
                outcome=outcome,
                total_ms=milliseconds(self._clock() - self._began),
            )
        )


def milliseconds(seconds: float) -> float:
    """With two decimals; -1 for what was not reached."""
    return -1 if seconds < 0 else round(seconds * 1000, 2)
