"""Sessions: started, shown, rewarded and closed; and their turns."""

from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationInfo, field_validator

from rolloutfleet.sampling import SamplingFields, check_size
from rolloutfleet.wire.base import Answered, AtLeastOne, EachOnce, Id, Paged, Reply, Request, Seconds

REASON_LIMIT: Final = 512
"""Characters of an outcome's reason."""
METADATA_LIMIT: Final = 64 * 1024
"""Bytes of a session's metadata as JSON."""
Reward = Annotated[float, Field(ge=-1e30, le=1e30)]
"""Bounded well inside float32, which rewards and their discounted sums are exported as."""
Count = Annotated[int, Field(ge=0, le=2**53)]

AgentMay = Literal["reward", "close", "delete"]
SessionState = Literal["open", "closed", "deleted"]
Outcome = Literal["completed", "truncated", "failed", "aborted"]
"""The end of a session: by itself; by its context or its limits; by an error; because somebody gave it up."""
Grammar = Literal["json_schema", "regex", "ebnf", "structural_tag"]
"""SGLang's kinds of grammar."""
FinishReason = Literal["stop", "length", "tool_calls"]
LineageKind = Literal["main", "subagent", "compaction", "other"]


class SessionLimits(Request):
    turns: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    tokens: Annotated[int, Field(ge=1, le=2**53)] | None = None


class SamplingValues(SamplingFields, Request):
    """Sampling parameters; unset: nothing is said of it."""


class SessionSampling(Request):
    """How a session's turns are sampled. An override counts whatever the agent asks for, a default where it asks for
    nothing."""

    defaults: SamplingValues = SamplingValues()
    overrides: SamplingValues = SamplingValues()


class GroupDeadline(Request):
    """The end of a group's open members: once so many have ended, and so many seconds since its start are over."""

    quorum: AtLeastOne
    deadline: Seconds


def _unsaid(value: object) -> bool:
    """Left out, so that a start of an earlier version can be made again across an upgrade: its key is bound to this."""
    return value is None


class StartSessions(Request):
    """POST /sessions: one session, or a group for one task."""

    task_id: Annotated[str, Field(max_length=512)] | None = None
    group_size: Annotated[int, Field(ge=1, le=4096)] = 1
    stale_after: Seconds | None = None
    limits: SessionLimits = SessionLimits()
    sampling: SessionSampling | None = Field(default=None, exclude_if=_unsaid)
    await_reward: Seconds | None = Field(default=None, exclude_if=_unsaid)
    """Seconds that a closed trajectory waits for a reward before it is exported without one."""
    train: bool = Field(default=True, exclude_if=bool)
    """False: an evaluation, which is never leased."""
    replaces: Id | None = Field(default=None, exclude_if=_unsaid)
    """A session whose place in its group the new one takes. `task_id` and `train` are that one's."""
    group: GroupDeadline | None = Field(default=None, exclude_if=_unsaid)
    metadata: dict[str, JsonValue] = Field(default_factory=dict, strict=False)
    agent_may: Annotated[list[AgentMay], Field(max_length=3, strict=False), EachOnce] = Field(default_factory=list)

    @field_validator("replaces")
    @classmethod
    def _one_by_one(cls, replaces: str | None, info: ValidationInfo) -> str | None:
        if replaces is not None and info.data.get("group_size", 1) != 1:
            raise ValueError("replaces takes the place of one session: leave group_size out")
        return replaces

    @field_validator("group")
    @classmethod
    def _of_a_group(cls, group: GroupDeadline | None, info: ValidationInfo) -> GroupDeadline | None:
        size = info.data.get("group_size")
        if group is not None and size is not None and (size == 1 or group.quorum > size):
            raise ValueError(
                f"group needs a group_size of 2 or more, and a quorum of at most that; group_size is {size}"
            )
        return group

    @field_validator("metadata")
    @classmethod
    def _small_enough(cls, metadata: dict[str, JsonValue]) -> dict[str, JsonValue]:
        check_size(metadata, most=METADATA_LIMIT)
        return metadata


class StartedSession(Reply):
    session_id: str
    api_key: str
    base_url: str
    """What an OpenAI SDK takes: it ends in `/sessions/{id}/v1`."""


class StartedSessions(Answered):
    """201; a group of one has its session's fields on top as well."""

    group_id: str
    sessions: list[StartedSession]
    session_id: str | None = None
    api_key: str | None = None
    base_url: str | None = None


class SessionStatus(Answered):
    """GET /sessions/{id}."""

    session_id: str
    group_id: str
    task_id: str | None = None
    ordinal: int = 0
    state: str
    outcome: Outcome | None = None
    """None while it is open, and of one that ended under an earlier version."""
    outcome_reason: str | None = None
    created_at: float
    idle_seconds: float = 0.0
    in_flight: int = 0
    turns: int = 0
    tokens: int = 0
    trajectories: int = 0
    """How many were closed so far."""
    leased: int = 0
    branches: int | None = None
    """Turns that no turn extends. It and the following are None until a store of an earlier version has been read."""
    reward: float | None = None
    """Of the newest of the main loop's rewarded turns; where none of these is rewarded, of the newest of all."""
    rewarded: int | None = None
    """How many turns have a reward."""
    output_tokens: int | None = None
    version_min: int | None = None
    """The lowest weight version of its sampled tokens, `version_max` the highest; None without any."""
    version_max: int | None = None
    last_activity_at: float | None = None
    """When it was last used: seconds since the epoch."""
    fate: str | None = None
    """In lists: its term in the ledger, as `/audit` sums them: live, leased, acknowledged, discarded."""
    stale_after: float | None = None
    await_reward: float | None = None
    train: bool = True
    """False of an evaluation."""
    limits: dict[str, int | None] = Field(default_factory=dict)
    sampling: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """`defaults` and `overrides`, the fleet's included, as far as there are some."""
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent_may: list[str] = Field(default_factory=list)


class ChosenSessions(BaseModel):
    """The query of GET /sessions: which of them are listed. What is not said leaves none out."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    state: SessionState | None = None
    outcome: Outcome | None = None
    task_id: Annotated[str, Field(max_length=512)] | None = None
    group_id: Id | None = None
    rewarded: bool | None = None
    """Whether some turn has a reward."""
    min_reward: Reward | None = None
    max_reward: Reward | None = None
    min_branches: Count | None = None
    min_turns: Count | None = None
    max_turns: Count | None = None
    min_tokens: Count | None = None
    max_tokens: Count | None = None
    min_version: Count | None = None
    """At least one token was sampled with this version or a later one; `max_version`: with this or an earlier one."""
    max_version: Count | None = None

    @field_validator("max_reward", "max_turns", "max_tokens", "max_version")
    @classmethod
    def _not_below_the_least(cls, most: float | None, info: ValidationInfo) -> float | None:
        lowest = (info.field_name or "").replace("max_", "min_")
        least = info.data.get(lowest)
        if most is not None and least is not None and most < least:
            raise ValueError(f"{info.field_name} must not be less than {lowest}, which is {least}")
        return most

    @property
    def said(self) -> dict[str, Any]:
        """What leaves some out, by its name."""
        named = ((name, getattr(self, name)) for name in ChosenSessions.model_fields)
        return {name: value for name, value in named if value is not None}


class SessionList(Paged):
    """GET /sessions."""

    sessions: list[SessionStatus]


class BranchReason(Reply):
    """Where a request parts from the history that it follows longest."""

    message: int | None
    """Index from 0; None for tools, and what else is not a message's."""
    field: str
    """role, content, reasoning, tool_calls, tool_call_id, tools, template, tokens, or another that the chat format
    writes."""


class Lineage(Reply):
    """Which line of work of its agent run a turn is of, as the client's headers said."""

    id: str | None
    """`main` of the main loop; None where the client gave none that could be kept."""
    kind: LineageKind
    parent: str | None = None
    """Id of the lineage that it was started by, or that it compacts; None where the client didn't say."""


class Sampled(Reply):
    """What a turn was sampled with. None: nobody said, and the engine's own default counted."""

    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    max_tokens: int | None = None
    """The most tokens that the engine was asked for."""
    chat_template_kwargs: dict[str, Any] | None = None


class TurnFacts(Reply):
    """What is said of a turn wherever one is shown."""

    turn_id: str
    parent_id: str | None
    reward: float | None
    finish_reason: str
    mixed_cache: bool
    branch_reason: BranchReason | None = None
    """None where it extends a turn, or there was none that it parts from."""
    constrained: Grammar | None = None
    """The kind of grammar that it was sampled under: its log-probabilities may be those of a masked distribution."""
    biased_by: list[str] | None = None
    """SGLang's sampling parameters, penalties or `logit_bias`, that changed the distribution that its log-probabilities
    are of; None where there were none."""
    stripped: list[str] | None = None
    """What was taken out of its request because it differs with every request, `cache_control` for example; None where
    there was nothing."""
    placeholders: int = 0
    """How many images of its prompt a text stands for."""
    special_tokens_in_text: int = 0
    """The number of control tokens that its request spells in what it adds to its parent's prompt, read as text."""
    lineage: Lineage = Lineage(id="main", kind="main")
    sampling: Sampled | None = None
    """None of a turn of an earlier version, which didn't note it."""


class Turn(TurnFacts):
    """One model call. `output_ids`, `logprobs` and `versions` have one entry a sampled token."""

    trajectory_id: str | None
    prompt_tokens: int
    completion_tokens: int
    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    created_at: float


class TurnList(Answered):
    turns: list[Turn]
    cursor: str | None = None


class GiveReward(Request):
    """POST /sessions/{id}/reward; the main loop's last completed turn unless one is named."""

    reward: Reward
    turn_id: Id | None = None
    close: bool | None = None

    @property
    def closes(self) -> bool:
        """Whether the turns committed so far become a trajectory: by default, where no turn is named."""
        return self.turn_id is None if self.close is None else self.close


class CloseSession(Request):
    """POST /sessions/{id}/close."""

    outcome: Outcome | None = None
    """None: truncated where a limit or the context ended its newest call, else completed; of one that has ended, as
    it was."""
    reason: Annotated[str, Field(max_length=REASON_LIMIT)] | None = None


class Touched(Answered):
    session_id: str


class Rewarded(Answered):
    session_id: str
    turn_id: str
    reward: float
    trajectory_id: str | None = None


class Closed(Answered):
    session_id: str
    trajectory_id: str | None = None
