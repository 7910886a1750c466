"""What a trainer catches.

    FleetError
      BadArgument         an argument is wrong; its name is in the message. Also a ValueError
      FleetClosed         the fleet object was closed, or belongs to another process or event loop
      Unreachable         no proxy that could answer did, within `patience`
      NotHeardYet         what only the fleet can say, before it was asked anything
      TookTooLong         a wait with a `timeout` is over. Also a TimeoutError
      Refused             a proxy answered with an error: `code`, `status`, `param`, `details`
        KeyRefused        401, 403: the admin key is not this fleet's
        NotKnown          404: no such session, group, lease, shard
        Gone              410: it was there once
        Conflict          409, 422: two that can't both be had
        NotNow            429, 503, 504, 507: and it was asked again until `patience` was over
      NotEverywhere       done, but not at every proxy: `failed` says where and why
      StillPaused         a weight update broke off; the fleet stays paused
      LeaseLost           what was acknowledged had been leased by somebody else meanwhile
      ShardsMissing       the owner of remote tensors answers, and does not keep them
      ShardMismatch       what it keeps is not what the reference says
      OwnerUnavailable    an owner gave no good answer within the time
      UnknownOwner        a reference names an address that is not a proxy of this fleet

The codes are those of `rolloutfleet.errors`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from rolloutfleet.wire import SHOULD_RETRY_HEADER
from rolloutfleet.wording import counted


class FleetError(Exception):
    """Whatever goes wrong between a trainer and its fleet."""


class BadArgument(FleetError, ValueError):
    """An argument that can't be meant. Nothing was asked of the fleet."""

    def __init__(self, argument: str, why: str) -> None:
        self.argument = argument
        self.why = why
        super().__init__(f"{argument}: {why}")


class FleetClosed(FleetError):
    """The object can't be used any more, or not here."""


class Unreachable(FleetError):
    """Nobody answered."""

    def __init__(self, message: str, *, why: str | None = None, sent: bool = False) -> None:
        self.why = why or message
        """Without the call."""
        self.sent = sent
        """Whether a proxy may have taken the call all the same."""
        super().__init__(message)


class NotHeardYet(FleetError):
    """Nothing has been heard of the fleet so far that says this."""


class TookTooLong(FleetError, TimeoutError):
    """A wait's own time is up. The fleet is as it was."""


@dataclass(eq=False, repr=False)
class Refused(FleetError):
    """A proxy's answer was an error."""

    said: str
    """Without status and code."""
    status: int
    code: str | None = None
    """One of `rolloutfleet.errors`; None where the answer was not a proxy's."""
    param: str | None = None
    """The field at fault, where one is."""
    details: dict[str, Any] = field(default_factory=dict)
    """What the answer said beside the error: the current `epoch`, the `dumps` of a session."""
    retry_after: float | None = None
    """Seconds after which it may work, where the proxy says so."""
    retry_forbidden: bool = False
    """Whether the proxy says that asking again can't help."""

    def __str__(self) -> str:
        return f"{self.said} ({self.status}{f', {self.code}' if self.code else ''})"


class KeyRefused(Refused):
    """The admin key is not one of this fleet's."""


class NotKnown(Refused):
    """There is no such name."""


class Gone(Refused):
    """What was there once: closed, deleted, reclaimed, or lost with its store."""


class Conflict(Refused):
    """It contradicts what has been done already."""


class NotNow(Refused):
    """It may work later."""


class NotEverywhere(FleetError):
    """Done, but not at every proxy."""

    def __init__(self, what: str, failed: Mapping[int, str]) -> None:
        self.failed = dict(failed)
        """Why, by ordinal."""
        self.found: list[Any] = []
        """What the others have, where a blocking fleet was asked for a list."""
        named = "; ".join(f"proxy {ordinal}: {why}" for ordinal, why in sorted(self.failed.items()))
        super().__init__(f"{what} did not reach every proxy: {named}")


class StillPaused(FleetError):
    """The fleet does not generate: somebody has to say `fleet.resume()`, once engines and version agree."""

    def __init__(self, why: str, *, epoch: int) -> None:
        self.epoch = epoch
        super().__init__(why)


class LeaseLost(FleetError):
    """Trajectories that were acknowledged too late: another trainer may have them as well."""

    def __init__(self, trajectory_ids: Sequence[str], why: str) -> None:
        self.trajectory_ids = list(trajectory_ids)
        self.why = why
        lost = counted(len(self.trajectory_ids), "trajectory was", "trajectories were")
        super().__init__(f"{lost} leased again, or discarded, before the acknowledgement came: {why}")


class ShardsMissing(FleetError):
    """These shards are not kept (any more): deleted, or their time was up."""

    def __init__(self, owner: str, ids: Sequence[str]) -> None:
        some = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        super().__init__(f"{owner} does not keep {some}: deleted, or past its time to live")
        self.owner = owner
        self.ids = tuple(ids)


class ShardMismatch(FleetError):
    """A shard has another type or shape than its reference."""


class OwnerUnavailable(FleetError):
    """A proxy gave no usable answer for as long as was waited."""


class UnknownOwner(FleetError):
    """The admin key goes to the fleet's own proxies alone, whatever a reference says."""

    def __init__(self, owner: str, known: Sequence[str]) -> None:
        super().__init__(f"{owner!r} is not a proxy of this fleet, which has {', '.join(known) or 'none'}")


def refusal(answer: httpx.Response) -> Refused:
    """The exception for an answer that is an error, read whole."""
    body = _body(answer)
    found = body.get("error")
    error: dict[str, Any] = found if isinstance(found, dict) else {}
    return _KINDS.get(answer.status_code, Refused)(
        str(error.get("message") or answer.reason_phrase or "no reason given"),
        status=answer.status_code,
        code=error.get("code"),
        param=error.get("param"),
        details={name: value for name, value in {**body, **error}.items() if name not in _NO_DETAILS},
        retry_after=_seconds(answer.headers.get("retry-after")),
        retry_forbidden=answer.headers.get(SHOULD_RETRY_HEADER) == "false",
    )


def _body(answer: httpx.Response) -> dict[str, Any]:
    try:
        body = answer.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


def _seconds(header: str | None) -> float | None:
    try:
        seconds = float(header) if header is not None else None
    except ValueError:
        return None
    return seconds if seconds is not None and 0 <= seconds < float("inf") else None


NOT_NOW: Final = (429, 503, 504, 507)
_NO_DETAILS: Final = frozenset(("error", "message", "type", "param", "code"))
_STATUSES: Final = {KeyRefused: (401, 403), NotKnown: (404,), Gone: (410,), Conflict: (409, 422), NotNow: NOT_NOW}
_KINDS: Final = {status: kind for kind, statuses in _STATUSES.items() for status in statuses}
