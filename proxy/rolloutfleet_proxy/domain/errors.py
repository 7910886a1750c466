"""Everything that the proxy refuses or fails at, one class per meaning.

A class holds the error's code, one of `rolloutfleet.errors`, and what a client is told to do next; the message and the
field at fault come with the instance where they vary. Which status and body it gets is the HTTP layer's business.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from rolloutfleet import errors as codes


class DomainError(Exception):
    """An error that a client is told of.

    `param` names the field at fault (`messages[2].content`). `retry_after` is in seconds; `should_retry` None leaves
    the decision to the client's own rules. `details` are further fields of the error, `beside` fields next to it.
    """

    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    should_retry: ClassVar[bool | None] = None

    def __init__(
        self,
        message: str | None = None,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        details: Mapping[str, Any] | None = None,
        beside: Mapping[str, Any] | None = None,
    ) -> None:
        self.message = self.message if message is None else message
        self.param = self.param if param is None else param
        self.retry_after = self.retry_after if retry_after is None else retry_after
        self.details = details or {}
        self.beside = beside or {}
        super().__init__(self.message)


# What kinds there are: the status is mostly one of these.


class InvalidRequest(DomainError):
    """A request that is wrong in itself."""

    code = codes.INVALID_REQUEST


class NotFound(DomainError):
    """What is named isn't here, and nothing is known of it."""


class NoLongerHere(DomainError):
    """What is named was here, or at a proxy that is gone."""


class Conflict(DomainError):
    """Two that can't both be had. Asking again changes nothing."""

    should_retry = False


class Unavailable(DomainError):
    """It can't be done now; asking again may help."""

    retry_after = 1.0


# A request that is wrong in itself.


class InvalidParameter(InvalidRequest):
    """A value that is of the wrong type, form or range. A message that doesn't name the field gets its path."""

    def __init__(self, param: str | None, message: str) -> None:
        if param is not None and not re.search(rf"(?<![\w.]){re.escape(param)}(?!\w)", message):
            message = f"{param}: {message}"
        super().__init__(message, param=param)


class MissingParameter(InvalidRequest):
    """A parameter that must be there."""

    def __init__(self, param: str) -> None:
        super().__init__(f"Missing required parameter: {param}.", param=param)


class UnknownParameter(InvalidRequest):
    """A parameter that no document of ours names."""

    def __init__(self, param: str) -> None:
        super().__init__(f"Unknown parameter: {param}.", param=param)


class UnsupportedParameter(InvalidRequest):
    """A parameter that can't be honoured, said rather than ignored."""

    code = codes.UNSUPPORTED_PARAMETER

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"Unsupported parameter: {param}: {why}", param=param)


class InvalidJson(InvalidRequest):
    """A body that isn't the JSON it should be."""

    code = codes.INVALID_JSON


class UnreadableJson(InvalidJson):
    """A body that can't be read as JSON. Of what the decoder says only the place is told, where it knows one."""

    def __init__(self, error: BaseException | None) -> None:
        at = getattr(error, "pos", None)
        where = f" from its character {at + 1} on" if type(at) is int else ""
        super().__init__(f"The body can't be read as JSON{where}.")


class BodyTooLarge(DomainError):
    """More bytes than a body may have."""

    code = codes.BODY_TOO_LARGE

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than the {limit} bytes that are allowed.")


class ContextExceeded(InvalidRequest):
    """Prompt plus budget is more than the model's context."""

    code = codes.CONTEXT_LENGTH_EXCEEDED
    param = "messages"


class TurnLimitReached(InvalidRequest):
    """The session has had all its turns."""

    code = codes.TURN_LIMIT


class TokenLimitReached(InvalidRequest):
    """The session has had all its tokens."""

    code = codes.TOKEN_LIMIT


class ModelNotFound(NotFound):
    """No model of that name is served."""

    code = codes.MODEL_NOT_FOUND
    param = "model"


class NoTurnYet(InvalidRequest):
    """A reward for a session that has no turn."""

    code = codes.NO_TURN
    message = "The session has no completed turn to reward yet."


class TurnNotFound(NotFound):
    """The session has no such turn."""

    code = codes.TURN_UNKNOWN
    param = "turn_id"


# Who asks.


class InvalidKey(DomainError):
    """A key that opens nothing here."""

    code = codes.INVALID_KEY
    message = "This key is not known here."


class MissingKey(InvalidKey):
    """No key at all."""

    message = "A key is needed, as `Authorization: Bearer KEY` or `x-api-key: KEY`."


class ForbiddenScope(DomainError):
    """A key that opens something else."""

    code = codes.FORBIDDEN_SCOPE


# Where a session is, or is no longer.


class SessionNotFound(NotFound):
    """There never was such a session here, or its tombstone has gone as well."""

    code = codes.SESSION_UNKNOWN
    param = "session_id"


class SessionClosed(NoLongerHere):
    """It takes no more calls."""

    code = codes.SESSION_CLOSED


class SessionDeleted(NoLongerHere):
    """Nothing of it can be had any more."""

    code = codes.SESSION_DELETED


class SessionReclaimed(NoLongerHere):
    """It was ended by the proxy, and what it left was dumped."""

    code = codes.SESSION_RECLAIMED


class StoreLost(NoLongerHere):
    """The store that owned it is no more."""

    code = codes.STORE_LOST


class KeptOnVolume(DomainError):
    """Its proxy has been scaled away. A retry within seconds can't help: somebody has to scale the fleet up again."""

    code = codes.KEPT_ON_VOLUME
    should_retry = False


class OwnerUnreachable(Unavailable):
    """Nothing was sent to a proxy that is expected; asking again may help."""

    code = codes.OWNER_UNREACHABLE

    def __init__(self, ordinal: int, why: str = "no connection could be made") -> None:
        super().__init__(f"Proxy {ordinal} can't be reached: {why}.")


class OwnerUnavailable(Unavailable):
    """A proxy broke off, and may have done what it was asked; asking again may help."""

    code = codes.OWNER_UNAVAILABLE

    def __init__(self, ordinal: int, why: str) -> None:
        super().__init__(f"Proxy {ordinal} is not available: {why}.")


class OwnerGone(NoLongerHere):
    """Its proxy has been scaled away, and its storage with it."""

    code = codes.OWNER_GONE


# Two that can't both be had.


class RewardFrozen(Conflict):
    """A reward that comes after its trajectory was handed out or discarded."""

    code = codes.REWARD_FROZEN


class AlreadyLeased(Conflict):
    """Trajectories of a lease that ended and were leased again."""

    code = codes.ALREADY_LEASED


class IdempotencyKeyReused(DomainError):
    """The key came with another body before."""

    code = codes.IDEMPOTENCY_KEY_REUSED
    param = "Idempotency-Key"


class ShardConflict(Conflict):
    """The name holds another tensor, or is another owner's."""

    code = codes.SHARD_CONFLICT
    param = "shard_id"


class AlreadyImported(Conflict):
    """A dump that was imported, or is being imported."""

    code = codes.ALREADY_IMPORTED
    param = "names"


class DumpDamaged(Conflict):
    """A dump that can't be trusted."""

    code = codes.DUMP_DAMAGED
    param = "names"


class DumpIncomplete(Conflict):
    """A dump that was written without some of its shards."""

    code = codes.DUMP_INCOMPLETE
    param = "names"


class ImportConflict(Conflict):
    """A dump of a session that is here, and otherwise than in the dump."""

    code = codes.DUMP_CONFLICT


class DrainConflict(Conflict):
    """Another drain is in force."""

    code = codes.DRAIN_CONFLICT
    param = "id"


class NotDraining(Conflict):
    """Something that is done only while the proxy drains."""

    code = codes.NOT_DRAINING
    message = "This ends every idle session, so it is done only while the proxy drains: POST /drain comes first."


# Weights.


class StepRefused(DomainError):
    """A step of the weights that is not taken, or was undone. Beside the error stands how things are: asking again
    changes nothing, the caller has to look at that."""

    should_retry = False

    def __init__(self, message: str, stands: Mapping[str, Any]) -> None:
        super().__init__(message, beside=stands)


class Stale(StepRefused):
    """What is asked is older than what is known."""


class EpochStale(Stale):
    """The epoch is taken or over."""

    code = codes.EPOCH_STALE


class VersionBackwards(Stale):
    """The weights would go back."""

    code = codes.VERSION_BACKWARDS


class RecoveryTooFar(StepRefused):
    """It would drop much, and nobody said that this is meant."""

    code = codes.RECOVERY_TOO_FAR


class PauseTimeout(StepRefused):
    """Not everybody paused in time, and the pause was undone."""

    code = codes.PAUSE_TIMEOUT


class PauseFailed(StepRefused):
    """An error that ended a pause, which was undone."""

    def __init__(self, reason: DomainError, message: str, stands: Mapping[str, Any]) -> None:
        super().__init__(message, stands)
        self.reason = reason
        self.code = reason.code


class StillGenerating(DomainError):
    """Calls of this proxy are in flight when all should have ended."""

    code = codes.PAUSE_TIMEOUT


# Leases, shards and dumps.


class LeaseNotFound(NotFound):
    """There is no such lease here."""

    code = codes.LEASE_UNKNOWN
    param = "lease_id"


class LeaseExpired(Conflict):
    """The lease doesn't hold what is asked for any more."""

    code = codes.LEASE_EXPIRED


class GroupNotFound(NotFound):
    """There is no such group here."""

    code = codes.GROUP_UNKNOWN
    param = "group_id"


class TrajectoryNotFound(NotFound):
    """Trajectories that are not of the lease."""

    code = codes.TRAJECTORY_UNKNOWN
    param = "trajectory_ids"


class ShardNotFound(NotFound):
    """A shard of a proxy that never was."""

    code = codes.SHARD_UNKNOWN
    param = "shard_id"


class ShardsMissing(ShardNotFound):
    """Shards that are not kept here, all of them named beside the error."""

    def __init__(self, ids: Sequence[str], *, param: str) -> None:
        some = ", ".join(ids[:10]) + (f" and {len(ids) - 10} more" if len(ids) > 10 else "")
        super().__init__(f"Not kept here: {some}.", param=param, beside={"missing": ids})


class DumpNotFound(NotFound):
    """There is no such dump in the folder."""

    code = codes.DUMP_UNKNOWN

    def __init__(self, name: object, *, param: str) -> None:
        super().__init__(f"There is no dump {name} in this proxy's folder.", param=param)


# Not now.


class NoRoom(DomainError):
    """There is no room for more now; later there may be."""

    code = codes.NO_ROOM
    retry_after = 5.0


class TooManyInFlight(NoRoom):
    """No room in memory for another request."""

    retry_after = 2.0


class Paused(Unavailable):
    """Generation has been paused for longer than calls are held."""

    code = codes.PAUSED
    retry_after = 10.0


class Draining(Unavailable):
    """The proxy is to end, and takes nothing new."""

    code = codes.DRAINING


class HeldTooLong(Draining):
    """A call that was held for as long as calls are."""

    retry_after = 10.0


class Stopping(Draining):
    """The proxy ends, and the next one will answer."""

    message = "The proxy is stopping; nothing was recorded."


class DiskFull(DomainError):
    """The disk has no room; nothing of the request was kept."""

    code = codes.STORE_FULL
    should_retry = False


class DiskFailed(DomainError):
    """The disk refused a write; nothing of the request was kept."""

    code = codes.STORE_FAILED
    should_retry = False


# Engine and gateway.


class EngineError(DomainError):
    """The engine or the gateway failed."""

    code = codes.ENGINE_ERROR


class GenerationCut(Unavailable):
    """A weight update came where a generation can't begin again."""

    code = codes.ENGINE_ERROR
    message = "A weight update cut the generation where it can't be continued. Nothing was recorded."


class EngineTimeout(DomainError):
    """The engine took too long."""

    code = codes.ENGINE_TIMEOUT


class EngineOverloaded(DomainError):
    """The engine has no room for the request."""

    code = codes.ENGINE_OVERLOADED
    retry_after = 1.0


class EngineUnreachable(Unavailable):
    """The gateway can't be reached, or knows of no engine."""

    code = codes.ENGINE_UNREACHABLE


class EvidenceRefused(DomainError):
    """The engine's reply is not what a turn can be made of; nothing was recorded."""

    code = codes.EVIDENCE_REFUSED

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"The engine's reply was refused ({reason}): {message} Nothing was recorded.")


class ClientGone(DomainError):
    """Only ever counted: there is nobody to be told."""

    code = codes.CLIENT_GONE
    message = "The caller went away and did not come back."


# Mistakes of ours, and what another proxy says.


class InternalError(DomainError):
    """A mistake of ours."""

    code = codes.INTERNAL
    message = "The proxy made a mistake; its log says more."


class TemporaryFailure(Unavailable):
    """Something beside the store failed, a folder or a process, and may be well again in a moment."""

    code = codes.INTERNAL


class PeerError(DomainError):
    """Another proxy's error as this one's own, with the code and the status that it was given there."""

    def __init__(self, message: str, *, code: str, status: int, param: str | None) -> None:
        super().__init__(message, param=param)
        self.code = code
        self.status = status
