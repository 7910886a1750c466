"""A chat call as the log and the metrics tell it: one line when it has been read, exactly one when it is over."""

from collections.abc import Iterator, Mapping, Sized
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field
from time import perf_counter
from typing import Any, Final, Protocol

from rolloutfleet.errors import CANCELLED
from rolloutfleet_proxy.domain.turn import Turn
from rolloutfleet_proxy.ids import random_hex
from rolloutfleet_proxy.telemetry.events import CallEnded, CallStarted, PassEnded, PassStarted, emit
from rolloutfleet_proxy.telemetry.metrics import COMMITTED, Metrics
from rolloutfleet_proxy.telemetry.phases import DONE, Phases

ANSWERED: Final = "answered"
CUT_SHORT: Final = "cut_short"
"""A call that was passed on: the whole answer went back, or the caller or the owner left before that; else an error."""

LONGEST_NAME: Final = 80
"""Characters of a session's name: before it is found, it is whatever a path holds."""
_NOTHING_REACHED = [-1.0] * DONE


class ReadRequest(Protocol):
    """What is told of a request, once it has been read."""

    @property
    def messages(self) -> Sized: ...
    @property
    def model(self) -> str | None: ...
    @property
    def stream(self) -> bool: ...
    @property
    def sampling(self) -> Mapping[str, Any]: ...
    @property
    def max_tokens(self) -> int | None: ...


def _call_id() -> str:
    return random_hex()[:8]


@dataclass(eq=False, slots=True)
class _Held:
    """How long a call was held before anything was done for it."""

    _held: float = field(default=-1.0, kw_only=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """The call is held until the block ends; more than once adds up."""
        began = perf_counter()
        try:
            yield
        finally:
            self._held = max(self._held, 0.0) + perf_counter() - began


@dataclass(eq=False, slots=True)
class ChatCall(_Held):
    """One call of a caller, which may make a turn, join one, or be given one again."""

    metrics: Metrics
    _: KW_ONLY
    request_id: str
    headers: Mapping[str, str]
    """The request's, by their names in lower case, as they go on to the engine."""
    api: str
    """The name of the dialect that it is in."""
    session_id: str = ""
    call_id: str = field(default_factory=_call_id)
    turn_id: str = ""
    messages: int = -1
    stream: bool = False
    status: int = -1
    """Sent to the caller; -1 where nothing was."""
    role: str = COMMITTED
    """The outcome if all goes well."""
    outcome: str = CANCELLED
    phases: Phases | None = None
    """Of the turn that this call makes or waits for."""
    prompt_tokens: int = -1
    completion_tokens: int = -1
    _arrived: float = field(default_factory=perf_counter)
    _in_flight_before: int = field(init=False)
    _read: bool = False

    def __post_init__(self) -> None:
        self.session_id = self.session_id[:LONGEST_NAME]
        self._in_flight_before = self.metrics.in_flight

    def read(self, session_id: str, asked: ReadRequest) -> None:
        """What is asked is known."""
        self.session_id, self.messages, self.stream = session_id, len(asked.messages), asked.stream
        self._start()

    def waits_for(self, turn_id: str, phases: Phases) -> None:
        self.turn_id, self.phases = turn_id, phases

    def answered(self, turn: Turn) -> None:
        """The whole answer has been sent."""
        self.turn_id, self.outcome = turn.name, self.role
        self.prompt_tokens, self.completion_tokens = turn.prompt_tokens, len(turn.output_ids)

    def ended(self) -> None:
        """Nothing more will be sent."""
        if not self._read:
            self._start()
        total = perf_counter() - self._arrived
        self.metrics.call_ended(self.outcome, total)
        phases = self.phases
        if phases is not None and self.prompt_tokens < 0:
            self.prompt_tokens = phases.prompt_tokens
        seconds = _NOTHING_REACHED if phases is None else phases.seconds()
        queue, tokenise_in, pause, engine, tokenise_out, commit = map(milliseconds, seconds)
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
                in_flight_after=self.metrics.in_flight,
                held_ms=milliseconds(self._held),
                queue_ms=queue,
                tokenise_in_ms=tokenise_in,
                pause_ms=pause,
                engine_ms=engine,
                tokenise_out_ms=tokenise_out,
                commit_ms=commit,
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


class CallFactory(Protocol):
    """Makes the record of a call that begins: a `ChatCall`, or one that does more with it."""

    def __call__(
        self, metrics: Metrics, *, request_id: str, headers: Mapping[str, str], api: str, session_id: str
    ) -> ChatCall: ...


@dataclass(eq=False, slots=True)
class PassedCall(_Held):
    """A chat call of another proxy's session: that proxy tells of the call, this one that it passed it on."""

    metrics: Metrics
    _: KW_ONLY
    request_id: str
    to: int
    _call_id: str = field(default_factory=_call_id)
    _began: float = field(default_factory=perf_counter)

    def __post_init__(self) -> None:
        emit(PassStarted(call_id=self._call_id, request_id=self.request_id, passed_to=self.to))

    def ended(self, *, status: int, outcome: str) -> None:
        """Nothing more will be sent; `status` is -1 where nothing was."""
        self.metrics.calls_passed_on.labels(outcome).inc()
        emit(
            PassEnded(
                call_id=self._call_id,
                request_id=self.request_id,
                passed_to=self.to,
                status=status,
                outcome=outcome,
                held_ms=milliseconds(self._held),
                total_ms=milliseconds(perf_counter() - self._began),
            )
        )


def milliseconds(seconds: float) -> float:
    """With two decimals; -1 for what was not reached."""
    return -1 if seconds < 0 else round(seconds * 1000, 2)
