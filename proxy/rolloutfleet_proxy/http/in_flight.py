"""How many bytes the requests under way may hold in memory, all together: beyond that a call is refused, unread."""

from rolloutfleet_proxy.domain.errors import TooManyInFlight

CALL_BYTES = 32 << 10
"""What a call takes besides its body: its connections, its task, its buffers."""


class InFlight:
    """The budget of a process, in bytes as they come over the wire."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        self.most = 0
        """The most there has been at once."""
        self.released = 0
        """All that was ever given back: what the allocator may return to the system grows with it."""

    def check(self, nbytes: int) -> None:
        """Raises TooManyInFlight where so many more would be too many."""
        if self.nbytes + nbytes > self.limit:
            raise TooManyInFlight(
                f"Requests in flight hold {self.nbytes} of {self.limit} bytes, and this one would hold {nbytes}."
            )

    def hold(self) -> "Held":
        """What one request holds. Raises TooManyInFlight where there is no room for another."""
        self.check(CALL_BYTES)
        return Held(self, CALL_BYTES)


class Held:
    """The bytes of one request, given back when the last of those who share it has released it."""

    __slots__ = ("_budget", "_nbytes", "_sharing")

    def __init__(self, budget: InFlight, nbytes: int) -> None:
        self._budget = budget
        self._nbytes = 0
        self._sharing = 1
        self.grow(nbytes)

    @property
    def nbytes(self) -> int:
        return self._nbytes

    def add(self, nbytes: int) -> None:
        """Take in more of a request. Raises TooManyInFlight where that is too much."""
        self._budget.check(nbytes)
        self.grow(nbytes)

    def expect(self, nbytes: int) -> None:
        """Raises TooManyInFlight where so much more would be too much; it counts only as it comes."""
        self._budget.check(nbytes)

    def grow(self, nbytes: int) -> None:
        """Count what a call has made: that is there already, and refusing it would waste it."""
        budget = self._budget
        self._nbytes += nbytes
        budget.nbytes += nbytes
        budget.most = max(budget.most, budget.nbytes)

    def share(self) -> "Held":
        """For one more who releases it."""
        self._sharing += 1
        return self

    def release(self) -> None:
        self._sharing -= 1
        if self._sharing == 0:
            self._budget.nbytes -= self._nbytes
            self._budget.released += self._nbytes
