"""The status of a RolloutFleet: what the operator says of it. Written by the operator alone.

Readers take what they know, so that an older client reads a newer operator's status. Times are RFC 3339
text, as Kubernetes writes them.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

MOST_PROBLEMS = 10
MOST_RESTARTS = 5

ConditionType = Literal[
    "Ready",
    "ProxiesReady",
    "GatewayReady",
    "EnginesReady",
    "Progressing",
    "MemoryWithinBudget",
    "SettingsInForce",
    "CleanupHealthy",
    "Durable",
    "Paused",
    "Suspended",
]


class StatusModel(BaseModel):
    """What all parts of a status share."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="ignore",
        frozen=True,
        use_attribute_docstrings=True,
    )


class ParkedStatus(StatusModel):
    """Data of proxies that are scaled away, kept on their claims until they are scaled up again."""

    ordinals: list[int] = Field(default_factory=list)
    sessions: int = 0
    turns: int = 0


class CurrentStatus(StatusModel):
    """What the operator is doing now."""

    action: str
    pod: str | None = None
    step: str | None = None
    since: str
    deadline: str | None = None
    waiting_for: Literal["slot", "cooldown", "quiet"] | None = None


class ProblemStatus(StatusModel):
    """What is wrong, with which pod, since when."""

    pod: str | None = None
    reason: str
    message: str
    since: str


class RestartStatus(StatusModel):
    """One restart. `before` and `after` are resident bytes, where it was for memory."""

    pod: str
    reason: str
    time: str
    before: int | None = None
    after: int | None = None


class RestartsStatus(StatusModel):
    """How often proxies were restarted, by reason."""

    memory: int = 0
    requested: int = 0
    rollout: int = 0
    crash: int = 0
    oom: int = 0
    last: Annotated[list[RestartStatus], Field(max_length=MOST_RESTARTS)] = Field(default_factory=list)


class RestartAnswer(StatusModel):
    """Which `spec.restart.id` has been carried out."""

    observed_id: Annotated[str | None, Field(alias="observedID")] = None


class ConditionStatus(StatusModel):
    """A condition as Kubernetes has them; its message holds no moving figure."""

    type: ConditionType
    status: Literal["True", "False", "Unknown"]
    reason: str
    message: str = ""
    observed_generation: int | None = None
    last_transition_time: str | None = None


class FleetStatus(StatusModel):
    """The whole status."""

    observed_generation: int | None = None
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    draining_replicas: int = 0
    selector: str | None = None
    endpoint: str | None = None
    template_hash: str | None = None
    operator_version: str | None = None
    parked: ParkedStatus = ParkedStatus()
    current: CurrentStatus | None = None
    problems: Annotated[list[ProblemStatus], Field(max_length=MOST_PROBLEMS)] = Field(default_factory=list)
    restarts: RestartsStatus = RestartsStatus()
    restart: RestartAnswer = RestartAnswer()
    conditions: list[ConditionStatus] = Field(default_factory=list)
