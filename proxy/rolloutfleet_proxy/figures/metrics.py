"""What this process counts of its own life: plain numbers, changed on the event loop alone.

They become Prometheus' families in `exposition`, only when asked for. The durable counters are the ledger's.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rolloutfleet_proxy.figures.histograms import Histogram
from rolloutfleet_proxy.figures.ignored_fields import IgnoredFields
from rolloutfleet_proxy.figures.phases import STEPS

COMMITTED = "committed"
REPLAYED = "replayed"
JOINED = "joined"
FIRST = "first"
EXTENDING = "extending"
BRANCH = "branch"
"""How a turn stands to those before it."""
_ANSWERED = frozenset((COMMITTED, REPLAYED, JOINED))

SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0),
    *(300.0, 600.0),
)
"""A commit takes a millisecond, and a generation may take minutes."""
TOKENS = tuple(float(2**power) for power in range(4, 19))


@dataclass(slots=True)
class CleanupTally:
    """What the sweeps of this process did to sessions that nobody used."""

    reclaimed: Counter[str] = field(default_factory=Counter)
    """Sessions by reason."""
    failures: int = 0
    """Attempts to dump a group that failed."""
    failing: dict[str, str] = field(default_factory=dict)
    """Why each group that the last sweep could not reclaim is still there, by group_id."""

    @property
    def error(self) -> str | None:
        """Of one that is failing."""
        return next(iter(self.failing.values()), None)


class Metrics:
    """Counts since the process started."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        """Chat calls that are over, by what came of them: committed, replayed, joined, or an error's code."""
        self.call_seconds = {"answered": Histogram(SECONDS), "failed": Histogram(SECONDS)}
        """From a chat call's arrival to its end."""
        self.refused: Counter[str] = Counter()
        """Answers that were errors, by code; a reply that was no evidence also by the reason."""
        self.ignored = IgnoredFields()
        """Chat calls with a field that has no effect."""
        self.turns: Counter[str] = Counter()
        """Committed turns: first of their session, extending a parent, or starting a branch."""
        self.branches: Counter[str] = Counter()
        """Turns that start a branch, by the field in which they part from an earlier turn."""
        self.follow_ups: Counter[str] = Counter()
        """Turns that come after others and hold an answer: extending, branch."""
        self.tokens: Counter[str] = Counter()
        """Tokens of committed turns: prompt, completion."""
        self.turn_tokens = {"prompt": Histogram(TOKENS), "completion": Histogram(TOKENS)}
        """The same, a turn."""
        self.step_seconds = {step: Histogram(SECONDS) for step in STEPS}
        """Of committed turns."""
        self.prefix_checks: Counter[str] = Counter()
        """Token-by-token checks of a committed turn's prompt against an earlier turn's ids: passed, failed."""
        self.passed_on: Counter[str] = Counter()
        """Chat calls of other proxies' sessions: answered, cut_short, or an error's code."""
        self.requests: Counter[tuple[str, str, str]] = Counter()
        """Requests that are no chat calls, by method, the path's template, and status."""
        self.turns_ended: Counter[str] = Counter()
        """Turns that were begun, by what became of them: committed, or an error's code."""
        self.unwaited: Counter[str] = Counter()
        """Those of them whose caller had gone."""
        self.engine_failures: Counter[str] = Counter()
        """Requests to the gateway that brought no turn, by error code."""
        self.generations = 0
        """Requests sent to the gateway."""
        self.version_differences = 0
        """Turns whose engine named a weight version that this proxy did not know."""
        self.cleanup = CleanupTally()
        self.in_flight = 0
        """Turns being made."""

    @contextmanager
    def call_in_flight(self) -> Iterator[None]:
        """Count a turn as under way until the block ends."""
        self.in_flight += 1
        try:
            yield
        finally:
            self.in_flight -= 1

    def sent(self) -> None:
        """Count a request to the gateway."""
        self.generations += 1

    def refuse(self, reason: str) -> None:
        """Count an answer that is an error."""
        self.refused[reason] += 1

    def call_ended(self, outcome: str, seconds: float) -> None:
        """Count a chat call that is over."""
        self.calls[outcome] += 1
        self.call_seconds["answered" if outcome in _ANSWERED else "failed"].add(seconds)

    def request_ended(self, method: str, route: str, status: int) -> None:
        """Count another request that is over."""
        self.requests[method, route, str(status)] += 1

    def engine_failed(self, code: str) -> None:
        """Count a request to the gateway that failed."""
        self.engine_failures[code] += 1

    def committed(self, kind: str, *, prompt_tokens: int, completion_tokens: int, seconds: Sequence[float]) -> None:
        """Count a committed turn; `seconds` are those of its steps."""
        self.turns[kind] += 1
        self.tokens["prompt"] += prompt_tokens
        self.tokens["completion"] += completion_tokens
        self.turn_tokens["prompt"].add(prompt_tokens)
        self.turn_tokens["completion"].add(completion_tokens)
        for histogram, took in zip(self.step_seconds.values(), seconds, strict=True):
            histogram.add(took)
