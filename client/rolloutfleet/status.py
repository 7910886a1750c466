"""The status of a RolloutFleet: what the operator says of it. Written by the operator alone.

Readers take what they know, so that an older client reads a newer operator's status. Times are RFC 3339
text, as Kubernetes writes them.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from rolloutfleet.spec_fields import ResourceModel

MOST_PROBLEMS = 10
MOST_RESTARTS = 5

# Fields of the status are open text: an enumeration in the CRD would refuse what a newer operator writes, and one in
# the model what it wrote. These are the names by which this release writes.
ConditionType = Literal[
    "Ready",
    "ProxiesReady",
    "GatewayReady",
    "EnginesReady",
    "Progressing",
    "MemoryWithinBudget",
    "SettingsInForce",
    "UpdateAvailable",
    "CleanupHealthy",
    "Durable",
    "Stalled",
    "Paused",
    "Suspended",
]


class StatusModel(ResourceModel):
    """What it does not know is passed over."""

    model_config = ConfigDict(extra="ignore")


class ParkedStatus(StatusModel):
    """Data of proxies that scaling down removed, kept on their claims until the fleet is scaled up again."""

    ordinals: list[int] = Field(default_factory=list)
    """The proxies' ordinals."""
    sessions: int = 0
    """Sessions on their claims."""
    turns: int = 0
    """Turns on their claims."""


class CurrentStatus(StatusModel):
    """What the operator is doing now."""

    action: str
    """The kind of action."""
    pod: str | None = None
    """The pod concerned."""
    step: str | None = None
    """Its current step."""
    since: str
    """When it began."""
    deadline: str | None = None
    """When it should have ended."""
    waiting_for: str | None = None
    """`slot`, `cooldown` or `quiet`: a free slot, the end of a cool-down, or the end of calls."""


class ProblemStatus(StatusModel):
    """What is wrong, with which pod, since when."""

    pod: str | None = None
    """None if the problem concerns the whole fleet."""
    reason: str
    """A constant, explained in the runbook."""
    message: str
    """What to do about it."""
    since: str
    """When it was first seen."""


class RestartStatus(StatusModel):
    """One restart. It is written here before it begins, and `after` when it is complete."""

    pod: str
    """The pod that is restarted."""
    reason: str
    """The cause."""
    time: str
    """When it was decided, or observed."""
    before: int | None = None
    """Resident bytes before."""
    after: int | None = None
    """Resident bytes after; none while it is in progress."""
    id: str | None = None
    """The drain's id, as in the proxy's log of boots; none for restarts that the operator did not begin."""
    uid: str | None = None
    """The uid of the pod that is restarted or replaced."""


class RestartsStatus(StatusModel):
    """How often proxies were restarted, by reason."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int] = Field(init=False)

    memory: int = 0
    """Over the memory budget."""
    requested: int = 0
    """Requested by `spec.restart.id`."""
    rollout: int = 0
    """For a new template."""
    crash: int = 0
    """Ended by itself."""
    oom: int = 0
    """Killed by the kernel for its memory."""
    last: Annotated[list[RestartStatus], Field(max_length=MOST_RESTARTS)] = Field(default_factory=list)
    """The newest of them, newest first, and those in progress."""

    @model_validator(mode="before")
    @classmethod
    def _keep_counters(cls, data: Any) -> Any:
        """A newer operator may count by more reasons, and these are kept; what else it adds is ignored as elsewhere."""
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name in cls.model_fields or type(value) is int}

    def count(self, reason: str) -> int:
        """Of that reason, also where this release has no name for it."""
        number: int = getattr(self, reason, 0)
        return number


class RestartAnswer(StatusModel):
    """Which `spec.restart.id` has been carried out."""

    observed_id: Annotated[str | None, Field(alias="observedID")] = None
    """The newest id that has been carried out."""


class StoreStatus(StatusModel):
    """The store of one proxy, where it outlives the pod."""

    ordinal: int
    """The proxy's."""
    id: str
    """Made with the store."""
    lost: int = 0
    """Times that it was found to be another one: what had been in the one before is lost."""
    lost_at: str | None = None
    """Time of the last loss."""


class ConditionStatus(StatusModel):
    """A condition as Kubernetes has them; its message holds no moving figure."""

    type: str
    """Which condition."""
    status: str
    """Whether it holds: `True`, `False` or `Unknown`."""
    reason: str
    """A constant, explained in the runbook."""
    message: str = ""
    """Human-readable; it names the worst problem and its pod."""
    observed_generation: int | None = None
    """The generation of the spec that this is about."""
    last_transition_time: str | None = None
    """When its status last changed."""


class FleetStatus(StatusModel):
    """The whole status."""

    observed_generation: int | None = None
    """The newest generation of the spec that the operator has seen."""
    replicas: int = 0
    """Existing proxies."""
    ready_replicas: int = 0
    """Of these, how many are ready."""
    updated_replicas: int = 0
    """Of these, how many have the newest template."""
    draining_replicas: int = 0
    """Of these, how many take no new sessions."""
    selector: str | None = None
    """Selects the proxies, for autoscalers."""
    endpoint: str | None = None
    """Where sessions are started."""
    template_hash: str | None = None
    """The hash of the desired pod template."""
    operator_version: str | None = None
    """The version of the operator that wrote this."""
    operator: str | None = None
    """The Lease that this operator held, as namespace/name."""
    parked: ParkedStatus = ParkedStatus()
    current: CurrentStatus | None = None
    problems: Annotated[list[ProblemStatus], Field(max_length=MOST_PROBLEMS)] = Field(default_factory=list)
    """What is wrong now, the worst first."""
    restarts: RestartsStatus = RestartsStatus()
    restart: RestartAnswer = RestartAnswer()
    stores: list[StoreStatus] = Field(default_factory=list)
    """Those that were seen, by ordinal, unless storage is ephemeral."""
    conditions: Annotated[
        list[ConditionStatus],
        Field(json_schema_extra={"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}),
    ] = Field(default_factory=list)
    """All conditions, from the operator's first pass on."""
