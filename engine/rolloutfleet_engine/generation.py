"""One request's tokens over time, with the weight version of each. Pure: whoever asks hands in the time."""

from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """Seconds to the first token, and from one to the next."""

    first: float
    each: float


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens `start` to `end` (exclusive) came from weights `version`."""

    version: str
    start: int
    end: int


@dataclass(kw_only=True, slots=True)
class Generation:
    """How many of `total` tokens are made at a time; stands still while held."""

    total: int
    pace: Pace
    started: float
    version: str
    made: int = 0
    retractions: int = 0
    stalls_at: int | None = None
    """Nothing more is made once so many tokens are."""

    _held_since: float | None = None
    _changes: list[tuple[str, int]] = field(default_factory=list)

    def advance(self, now: float) -> int:
        """Counts the tokens made until `now`."""
        if self._held_since is None:
            bound = self.total if self.stalls_at is None else min(self.total, self.stalls_at)
            self.made = max(self.made, min(bound, self._due(now)))
        return self.made

    def time_of(self, count: int) -> float | None:
        """When token number `count` is made; None while held."""
        if self._held_since is not None or (self.stalls_at is not None and count > self.stalls_at):
            return None
        return self.started + self.pace.first + max(0, count - 1) * self.pace.each

    def hold(self, now: float, *, retract: bool = False) -> None:
        self.advance(now)
        if self._held_since is None:
            self._held_since = now
            self.retractions += retract

    def go_on(self, now: float) -> None:
        if self._held_since is not None:
            self.started += now - self._held_since
            self._held_since = None

    def end_now(self, now: float) -> None:
        """Nothing comes after what is made."""
        self.advance(now)
        self.total = self.made

    def change_version(self, version: str, now: float) -> None:
        self.advance(now)
        if version != self.version:
            if self.made:
                self._changes.append((self.version, self.made))
            self.version = version

    def spans(self) -> list[Span]:
        """The versions of the tokens made, as SGLang gives them (`srt/utils/weight_versions.py`): adjoining spans,
        neighbours of one version joined; a single empty span where nothing was made."""
        spans: list[Span] = []
        for version, end in [*self._changes, (self.version, self.made)]:
            start, end = spans[-1].end if spans else 0, min(end, self.made)
            if spans and end <= start:
                continue
            if spans and spans[-1].version == version:
                spans[-1] = Span(version, spans[-1].start, end)
            else:
                spans.append(Span(version, start, end))
        return spans

    def _due(self, now: float) -> int:
        since_first = now - self.started - self.pace.first
        if since_first < 0:
            return 0
        # A waker may come a hair before the time that it was set for.
        return self.total if not self.pace.each else 1 + int(since_first / self.pace.each + 1e-6)
