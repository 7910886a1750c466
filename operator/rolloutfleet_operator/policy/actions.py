"""The actions that the executor carries out. All are idempotent.

The number of replicas is not an action: `Decision.replicas`, `gateway_replicas` and `engine_replicas` go into the
children that are applied at every pass. Pods are deleted only by eviction, and by a StatefulSet that is scaled down.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rolloutfleet.wire import DrainMode, DrainThen


@dataclass(frozen=True, slots=True, kw_only=True)
class AskDrain:
    """POST /drain at that pod, or renew it. 409 drain_conflict and 503 are not errors: look again at the next pass."""

    pod: str
    id: str
    mode: DrainMode
    then: DrainThen
    ttl: float
    reason: str
    """Becomes the boot's reason, `planned: REASON`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoDrain:
    """DELETE /drain?id=… at that pod."""

    pod: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskDumps:
    """POST /dumps at that pod, which drains: what is idle and not leased is dumped. Asked until nothing is left."""

    pod: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """An Eviction with the uid as precondition. 429 (the disruption budget) and 404 are not errors."""

    pod: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchMetadata:
    """Set annotations and labels of our group on the pod of that uid; None takes one away."""

    pod: str
    uid: str
    annotations: Mapping[str, str | None] = field(default_factory=dict)
    labels: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddWorker:
    """Tell that gateway of an engine (`POST /workers`). 409 is not an error: it knows it, or is about to."""

    gateway: str
    """Its address."""
    url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveWorker:
    """Take an engine out of that gateway (`DELETE /workers/{id}`), which lets calls under way end."""

    gateway: str
    url: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EmitEvent:
    """An Event on the fleet and, where one is named, on the pod. Said once: at a change, never at rest."""

    reason: str
    message: str
    pod: str | None = None
    warning: bool = False


Action = AskDrain | UndoDrain | AskDumps | Evict | PatchMetadata | AddWorker | RemoveWorker | EmitEvent
