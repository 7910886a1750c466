"""Everything that the proxy refuses or fails at, one class per meaning.

A class is declared with the error's code, one of `rolloutfleet.errors`, and what a client is told to do next; the
message and the field at fault come with the instance where they vary. Which status and body it gets is the HTTP
layer's business; `PeerError` alone brings the status that another proxy gave it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

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

    def __init_subclass__(
        cls,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
        should_retry: bool | None = None,
    ) -> None:
        """What a class is declared with holds for its errors, and for those derived from them."""
        declared = {"code": code, "param": param, "retry_after": retry_after, "should_retry": should_retry}
        for name, value in declared.items():
            if value is not None:
                setattr(cls, name, value)

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


def some(names: Sequence[str]) -> str:
    """The first ten of them, as a message names them, and how many more there are."""
    return ", ".join(names[:10]) + (f" and {len(names) - 10} more" if len(names) > 10 else "")


# What kinds there are: the status is mostly one of these.


class InvalidRequest(DomainError, code=codes.INVALID_REQUEST):
    """A request that is wrong in itself."""


class NotFound(DomainError):
    """What is named isn't here, and nothing is known of it."""


class NoLongerHere(DomainError):
    """What is named was here, or at a proxy that is gone."""


class Conflict(DomainError, should_retry=False):
    """Two that can't both be had. Asking again changes nothing."""


class Unavailable(DomainError, retry_after=1.0):
    """It can't be done now; asking again may help."""


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


class UnsupportedParameter(InvalidRequest, code=codes.UNSUPPORTED_PARAMETER):
    """A parameter that can't be honoured, said rather than ignored."""

    def __init__(self, param: str, why: str) -> None:
        super().__init__(f"Unsupported parameter: {param}: {why}", param=param)


class InvalidJson(InvalidRequest, code=codes.INVALID_JSON):
    """A body that isn't the JSON it should be."""


class UnreadableJson(InvalidJson):
    """A body that can't be read as JSON. Of what the decoder says only the place is told, where it knows one."""

    def __init__(self, error: BaseException | None) -> None:
        at = getattr(error, "pos", None)
        where = f" from its character {at + 1} on" if type(at) is int else ""
        super().__init__(f"The body can't be read as JSON{where}.")


class BodyTooLarge(DomainError, code=codes.BODY_TOO_LARGE):
    """More bytes than a body may have."""

    def __init__(self, limit: int) -> None:
        super().__init__(f"The body is larger than the {limit} bytes that are allowed.")


class TooManyValues(DomainError, code=codes.BODY_TOO_LARGE):
    """More JSON values than a body may have."""

    def __init__(self, values: int, most: int) -> None:
        super().__init__(
            f"The body has {values} JSON values (objects, arrays, and what is in them), of which {most} are allowed: "
            "send fewer messages, content parts or tools, or raise the proxies' body_limit, which is 128 times that."
        )


class ContextExceeded(InvalidRequest, code=codes.CONTEXT_LENGTH_EXCEEDED, param="messages"):
    """Prompt plus budget is more than the model's context. Whoever knows the request names its field.

    `prompt_tokens` (of a huge request, how many it has at the least) and `context_length` are there, as far as they are
    known where an engine refused.
    """

    def __init__(self, message: str, *, prompt_tokens: int | None = None, context_length: int | None = None) -> None:
        # By the code or by these words, LangChain and others know it where they see the message alone.
        super().__init__(f"The request exceeds the context window ({self.code}): {message}")
        self.prompt_tokens = prompt_tokens
        self.context_length = context_length

    @property
    def room(self) -> int | None:
        """Tokens that the prompt leaves, if any; None where that is not known."""
        if self.context_length is None or self.prompt_tokens is None:
            return None
        return self.context_length - self.prompt_tokens


class TurnLimitReached(InvalidRequest, code=codes.TURN_LIMIT):
    """The session has had all its turns."""


class TokenLimitReached(InvalidRequest, code=codes.TOKEN_LIMIT):
    """The session has had all its tokens."""


LIMITS: Final = (ContextExceeded, TurnLimitReached, TokenLimitReached)
"""What a session's context or limits end a call with."""


class ModelNotFound(NotFound, code=codes.MODEL_NOT_FOUND, param="model"):
    """No model of that name is served."""


class NoTurnYet(InvalidRequest, code=codes.NO_TURN):
    """A reward for a session that has no turn."""

    message = "The session has no completed turn to reward yet."


class TurnNotFound(NotFound, code=codes.TURN_UNKNOWN, param="turn_id"):
    """The session has no such turn."""


class TurnNotFollowed(InvalidRequest, code=codes.PREVIOUS_RESPONSE_NOT_FOUND):
    """A call goes on from a turn that its session does not have, or shows no more."""


class ResponseNotFound(NotFound, code=codes.RESPONSE_UNKNOWN, param="response_id"):
    """The session has no turn of that response, or shows it no more."""


# Who asks.


class InvalidKey(DomainError, code=codes.INVALID_KEY):
    """A key that opens nothing here."""

    message = "This key is not known here."


KEY_FORMS: Final = "`Authorization: Bearer KEY` or `x-api-key: KEY`"
"""How a call carries its key, unless its API has it elsewhere."""


class MissingKey(InvalidKey):
    """No key at all."""

    def __init__(self, forms: str = KEY_FORMS) -> None:
        super().__init__(f"A key is needed, as {forms}.")


class ForbiddenScope(DomainError, code=codes.FORBIDDEN_SCOPE):
    """A key that opens something else."""


# Where a session is, or is no longer.


class SessionNotFound(NotFound, code=codes.SESSION_UNKNOWN, param="session_id"):
    """There never was such a session here, or its tombstone has gone as well."""


class SessionClosed(NoLongerHere, code=codes.SESSION_CLOSED):
    """It takes no more calls."""


class GroupClosed(NoLongerHere, code=codes.GROUP_CLOSED):
    """It was closed at its group's deadline."""


class SessionDeleted(NoLongerHere, code=codes.SESSION_DELETED):
    """Nothing of it can be had any more."""


class SessionReclaimed(NoLongerHere, code=codes.SESSION_RECLAIMED):
    """It was ended by the proxy, and what it left was dumped."""


class StoreLost(NoLongerHere, code=codes.STORE_LOST):
    """The store that owned it is no more."""


class KeptOnVolume(DomainError, code=codes.KEPT_ON_VOLUME, should_retry=False):
    """Its proxy has been scaled away. A retry within seconds can't help: somebody has to scale the fleet up again."""


class OwnerFailed(Unavailable):
    """A proxy that is expected did not answer as it should."""


class OwnerUnreachable(OwnerFailed, code=codes.OWNER_UNREACHABLE):
    """Nothing was sent to a proxy that is expected; asking again may help."""

    def __init__(self, ordinal: int, why: str = "no connection could be made") -> None:
        super().__init__(f"Proxy {ordinal} can't be reached: {why}.")
        self.ordinal = ordinal


class OwnerUnavailable(OwnerFailed, code=codes.OWNER_UNAVAILABLE):
    """A proxy broke off, and may have done what it was asked; asking again may help."""

    def __init__(self, ordinal: int, why: str) -> None:
        super().__init__(f"Proxy {ordinal} is not available: {why}.")


class OwnerGone(NoLongerHere, code=codes.OWNER_GONE):
    """Its proxy has been scaled away, and its storage with it."""


# Two that can't both be had.


class RewardFrozen(Conflict, code=codes.REWARD_FROZEN):
    """A reward that comes after its trajectory was handed out or discarded."""


class OutcomeFrozen(Conflict, code=codes.OUTCOME_FROZEN, param="outcome"):
    """A trainer has had the session with the outcome that it has."""


class AlreadyLeased(Conflict, code=codes.ALREADY_LEASED):
    """Trajectories of a lease that ended and were leased again."""


class ReplaceConflict(Conflict, code=codes.REPLACE_CONFLICT, param="replaces"):
    """A session that can't be replaced any more."""


class IdempotencyKeyReused(DomainError, code=codes.IDEMPOTENCY_KEY_REUSED, param="Idempotency-Key"):
    """The key came with another body before."""


class ShardConflict(Conflict, code=codes.SHARD_CONFLICT, param="shard_id"):
    """The name holds another tensor, or is another owner's."""


class AlreadyImported(Conflict, code=codes.ALREADY_IMPORTED, param="names"):
    """A dump that was imported, or is being imported."""


class DumpDamaged(Conflict, code=codes.DUMP_DAMAGED, param="names"):
    """A dump that can't be trusted."""


class DumpIncomplete(Conflict, code=codes.DUMP_INCOMPLETE, param="names"):
    """A dump that was written without some of its shards."""


class ImportConflict(Conflict, code=codes.DUMP_CONFLICT):
    """A dump of a session that is here, and otherwise than in the dump."""


class DrainConflict(Conflict, code=codes.DRAIN_CONFLICT, param="id"):
    """Another drain is in force."""


class NotDraining(Conflict, code=codes.NOT_DRAINING):
    """Something that is done only while the proxy drains."""

    message = "This ends every idle session, so it is done only while the proxy drains: POST /drain comes first."


# Weights.


class StepRefused(DomainError, should_retry=False):
    """A step of the weights that is not taken, or was undone. Beside the error stands how things are: asking again
    changes nothing, the caller has to look at that."""

    def __init__(self, message: str, stands: Mapping[str, Any]) -> None:
        super().__init__(message, beside=stands)


class Stale(StepRefused):
    """What is asked is older than what is known."""


class EpochStale(Stale, code=codes.EPOCH_STALE):
    """The epoch is taken or over."""


class VersionBackwards(Stale, code=codes.VERSION_BACKWARDS):
    """The weights would go back."""


class RecoveryTooFar(StepRefused, code=codes.RECOVERY_TOO_FAR):
    """It would drop much, and nobody said that this is meant."""


class PauseTimeout(StepRefused, code=codes.PAUSE_TIMEOUT):
    """Not everybody paused in time, and the pause was undone."""


class PauseFailed(StepRefused):
    """An error that ended a pause, which was undone."""

    def __init__(self, reason: DomainError, message: str, stands: Mapping[str, Any]) -> None:
        super().__init__(message, stands)
        self.reason = reason
        self.code = reason.code


class LoadFailed(StepRefused, code=codes.LOAD_FAILED):
    """Weights were not loaded everywhere, or what follows failed: the fleet stays paused."""


class StillGenerating(DomainError, code=codes.PAUSE_TIMEOUT):
    """Calls of this proxy are in flight when all should have ended."""


# Leases, shards and dumps.


class LeaseNotFound(NotFound, code=codes.LEASE_UNKNOWN, param="lease_id"):
    """There is no such lease here."""


class LeaseExpired(Conflict, code=codes.LEASE_EXPIRED):
    """The lease doesn't hold what is asked for any more."""


class GroupNotFound(NotFound, code=codes.GROUP_UNKNOWN, param="group_id"):
    """There is no such group here."""


class TrajectoryNotFound(NotFound, code=codes.TRAJECTORY_UNKNOWN, param="trajectory_ids"):
    """Trajectories that are not of the lease."""


class ShardNotFound(NotFound, code=codes.SHARD_UNKNOWN, param="shard_id"):
    """A shard of a proxy that never was."""


class ShardsMissing(ShardNotFound):
    """Shards that are not kept here, all of them named beside the error."""

    def __init__(self, ids: Sequence[str], *, param: str) -> None:
        super().__init__(f"Not kept here: {some(ids)}.", param=param, beside={"missing": ids})


class DumpNotFound(NotFound, code=codes.DUMP_UNKNOWN):
    """There is no such dump in the folder."""

    def __init__(self, name: object, *, param: str) -> None:
        super().__init__(f"There is no dump {name} in this proxy's folder.", param=param)


# Not now.


class NoRoom(DomainError, code=codes.NO_ROOM, retry_after=5.0):
    """There is no room for more now; later there may be."""


class TooManyInFlight(NoRoom, retry_after=2.0):
    """No room in memory for another request."""


class TooManyViewers(NoRoom, code=codes.TOO_MANY_VIEWERS, retry_after=1.0):
    """As many as may already look on, or wait for a page of a conversation."""


class TooManyCounts(NoRoom, retry_after=1.0):
    """As many prompts are counted already as are at once."""

    message = "This proxy is counting the tokens of other prompts: ask again."


class Paused(Unavailable, code=codes.PAUSED, retry_after=10.0):
    """Generation has been paused for longer than calls are held."""


class Draining(Unavailable, code=codes.DRAINING):
    """The proxy is to end, and takes nothing new."""


class HeldTooLong(Draining, retry_after=10.0):
    """A call that was held for as long as calls are."""


class Stopping(Draining):
    """The proxy ends, and the next one will answer."""

    message = "The proxy is stopping; nothing was recorded."


class DiskError(DomainError, should_retry=False):
    """The disk did not take a write. Nothing of it was made, and nothing of the request was kept."""

    def __init__(self, why: str) -> None:
        super().__init__(f"Nothing was recorded: {why}.")


class StoreBusy(Unavailable, code=codes.STORE_BUSY, retry_after=5.0):
    """Another program has the store locked, or its disk stands still."""

    message = "The store takes no writes just now: another program has it locked, or its disk stands still. Try again."


class DiskFull(DiskError, code=codes.STORE_FULL):
    """It has no room."""


class DiskFailed(DiskError, code=codes.STORE_FAILED):
    """It refused the write for another reason."""


class DamageFound(DomainError, code=codes.STORE_DAMAGED, should_retry=False):
    """The store's file is not as it was written."""


class TurnDamaged(DamageFound):
    """The disk has changed something of a turn: nobody is given it."""

    def __init__(self, number: int) -> None:
        super().__init__(
            f"Turn {number} of this session is damaged: the proxy's disk has changed it since it was committed. "
            "The session can't go on from it; start another one."
        )


# Engine and gateway.


class EngineError(DomainError, code=codes.ENGINE_ERROR):
    """The engine or the gateway failed."""


class GenerationCut(Unavailable, code=codes.ENGINE_ERROR):
    """A weight update came where a generation can't begin again."""

    message = "A weight update cut the generation where it can't be continued. Nothing was recorded."


class EngineTimeout(DomainError, code=codes.ENGINE_TIMEOUT):
    """The engine took too long."""


class EngineOverloaded(DomainError, code=codes.ENGINE_OVERLOADED, retry_after=1.0):
    """The engine has no room for the request."""


class EngineUnreachable(Unavailable, code=codes.ENGINE_UNREACHABLE):
    """The gateway can't be reached, or knows of no engine."""


class EvidenceRefused(DomainError, code=codes.EVIDENCE_REFUSED):
    """The engine's reply is not what a turn can be made of; nothing was recorded."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"The engine's reply was refused ({reason}): {message} Nothing was recorded.")


class ClientGone(DomainError, code=codes.CLIENT_GONE):
    """Only ever counted: there is nobody to be told."""

    message = "The caller disconnected and did not retry."


# Mistakes of ours, and what another proxy says.


class InternalError(DomainError, code=codes.INTERNAL):
    """A mistake of ours."""

    message = "Internal error: the proxy's log has the details, under the X-Request-ID of this answer."


class TemporaryFailure(Unavailable, code=codes.INTERNAL):
    """Something beside the store failed, a folder or a process, and may be well again in a moment."""


class PeerError(DomainError):
    """Another proxy's error as this one's own, with the code and the status that it was given there."""

    def __init__(self, message: str, *, code: str, status: int, param: str | None) -> None:
        super().__init__(message, param=param)
        self.code = code
        self.status = status
