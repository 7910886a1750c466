"""Requests and replies of a proxy's native API.

Requests are read strictly: unknown fields, text or booleans for numbers, and numbers that are not
finite are refused. Replies let unknown fields pass, so that an older client reads a newer proxy.
Times are seconds. Error codes are in `rolloutfleet.errors`, and under the same names here.
"""

import json
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator

from rolloutfleet.errors import *  # noqa: F403

LEASE_ID_HEADER: Final = "Lease-Id"
IDEMPOTENCY_KEY_HEADER: Final = "Idempotency-Key"
SHOULD_RETRY_HEADER: Final = "x-should-retry"
JSON_MEDIA_TYPE: Final = "application/json"
TENSORS_MEDIA_TYPE: Final = "application/octet-stream"
EXPORT_METADATA_KEY: Final = "export"
"""The key under a safetensors header's `__metadata__` that holds an export's JSON."""

YEAR: Final = 365 * 86400.0
METADATA_LIMIT: Final = 64 * 1024
"""Bytes of a session's metadata as JSON."""

Id = Annotated[str, Field(min_length=1, max_length=128)]
Whole = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Versions are exported as int32, so no whole number here is larger."""
LAST_EPOCH: Final = 2**31 - 2
"""The one after it is still a whole number here: whoever counts on from it is told no, and by every proxy alike."""
Epoch = Annotated[int, Field(ge=0, le=LAST_EPOCH)]
LAST_RUN: Final = 2**31 - 2
"""As with epochs: whoever asks for the one after it is told no."""
Run = Annotated[int, Field(ge=0, le=LAST_RUN)]
Seconds = Annotated[float, Field(gt=0, le=100 * YEAR)]
Reward = Annotated[float, Field(ge=-1e30, le=1e30)]
"""Bounded well inside float32, which rewards and their discounted sums are exported as."""

AgentMay = Literal["reward", "close", "delete"]
SessionState = Literal["open", "closed", "deleted"]
ExportStyle = Literal["concat", "individual"]
ExportStatus = Literal["leased", "not_ready", "leased_elsewhere", "gone", "unknown"]
PauseMode = Literal["abort", "wait", "retract", "in_place"]
LeftOpen = Literal["keep", "close", "delete"]
"""What a recovery does with sessions that an earlier run left open."""
DrainMode = Literal["cordon", "quiesce"]
DrainThen = Literal["stay", "restart", "exit"]
DumpState = Literal["ready", "importing", "imported"]
Grammar = Literal["json_schema", "regex", "ebnf", "structural_tag"]
"""SGLang's kinds of grammar."""
FinishReason = Literal["stop", "length", "tool_calls"]


class Request(BaseModel):
    """What a client sends; anything unexpected in it is an error."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, validate_by_name=True)


class Reply(BaseModel):
    """What a proxy answers; a reader takes what it knows."""

    model_config = ConfigDict(extra="ignore", frozen=True, validate_by_name=True)


class ErrorDetail(Reply):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    reason: str | None = None
    """Of a session that was reclaimed: why."""
    dumps: list[str] | None = None
    """Files that hold what it left."""


class Failed(Reply):
    """A proxy that an answer does not cover, and why."""

    ordinal: int
    error: ErrorDetail


class Refusal(Reply):
    """An error's body. Some say beside it how things stand."""

    error: ErrorDetail
    run: int | None = None
    version: int | None = None
    epoch: int | None = None
    paused: bool | None = None
    would_drop: dict[str, int] | None = None
    ordinals: list[int] | None = None
    failed: list[Failed] | None = None
    missing: list[str] | None = None
    """Shards."""


class Answered(Reply):
    """Every answer names the ordinals that it covers."""

    ordinals: list[int] = Field(default_factory=list)


class Covering(Answered):
    """An answer that may be a whole fleet's names those that failed, too."""

    failed: list[Failed] = Field(default_factory=list)


class Paged(Covering):
    """A page of a list; `cursor` is None on the last one."""

    cursor: str | None = None


# Sessions


class SessionLimits(Request):
    turns: Annotated[int, Field(ge=1, le=2**31 - 1)] | None = None
    tokens: Annotated[int, Field(ge=1, le=2**53)] | None = None


class StartSessions(Request):
    """POST /sessions: one session, or a group for one task."""

    task_id: Annotated[str, Field(max_length=512)] | None = None
    group_size: Annotated[int, Field(ge=1, le=4096)] = 1
    stale_after: Seconds | None = None
    limits: SessionLimits = SessionLimits()
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    agent_may: Annotated[list[AgentMay], Field(max_length=3)] = Field(default_factory=list)

    @field_validator("metadata")
    @classmethod
    def _small_enough(cls, metadata: dict[str, JsonValue]) -> dict[str, JsonValue]:
        try:
            size = len(json.dumps(metadata, allow_nan=False, ensure_ascii=False).encode())
        except UnicodeEncodeError:
            raise ValueError("metadata must be text of whole characters throughout") from None
        except (ValueError, RecursionError):
            raise ValueError("metadata must be JSON: finite numbers, and no endless depth") from None
        if size > METADATA_LIMIT:
            raise ValueError(f"metadata is {size} bytes of JSON; at most {METADATA_LIMIT}")
        return metadata

    @field_validator("agent_may")
    @classmethod
    def _named_once(cls, agent_may: list[AgentMay]) -> list[AgentMay]:
        if len(set(agent_may)) != len(agent_may):
            raise ValueError("agent_may names something twice")
        return agent_may


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
    created_at: float
    idle_seconds: float = 0.0
    in_flight: int = 0
    turns: int = 0
    tokens: int = 0
    trajectories: int = 0
    """How many were closed so far."""
    leased: int = 0
    fate: str | None = None
    """In lists: its term in the ledger, as `/audit` sums them: live, leased, acknowledged, discarded."""
    stale_after: float | None = None
    limits: dict[str, int | None] = Field(default_factory=dict)
    metadata: dict[str, Any] = Field(default_factory=dict)
    agent_may: list[str] = Field(default_factory=list)


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


class Turn(Reply):
    """One model call. `output_ids`, `logprobs` and `versions` have one entry a sampled token."""

    turn_id: str
    parent_id: str | None
    trajectory_id: str | None
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    output_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    reward: float | None
    mixed_cache: bool
    branch_reason: BranchReason | None = None
    """None where it extends a turn, or there was none that it parts from."""
    constrained: Grammar | None = None
    """The kind of grammar that it was sampled under: its log-probabilities may be those of a masked distribution."""
    biased_by: list[str] | None = None
    """SGLang's sampling parameters, penalties or `logit_bias`, that changed the distribution that its log-probabilities
    are of; None where there were none."""
    created_at: float


class TurnList(Answered):
    turns: list[Turn]
    cursor: str | None = None


class GiveReward(Request):
    """POST /sessions/{id}/reward; the last completed turn unless one is named."""

    reward: Reward
    turn_id: Id | None = None
    close: bool | None = None

    @property
    def closes(self) -> bool:
        """Whether the turns committed so far become a trajectory: by default, where no turn is named."""
        return self.turn_id is None if self.close is None else self.close


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


# Export and leases


class AskExport(Request):
    """POST /export: these sessions, this group, or any trajectories up to a number of them."""

    session_ids: Annotated[list[Id], Field(min_length=1, max_length=10_000)] | None = None
    group_id: Id | None = None
    max_trajectories: Annotated[int, Field(ge=1, le=100_000)] | None = None
    style: ExportStyle = "concat"
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0
    as_: Annotated[Literal["tensors", "shards"], Field(alias="as")] = "tensors"
    lease_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 600.0

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        chosen = [self.session_ids, self.group_id, self.max_trajectories]
        if sum(choice is not None for choice in chosen) > 1:
            raise ValueError("session_ids, group_id and max_trajectories exclude each other")
        if self.session_ids is not None and len(set(self.session_ids)) != len(self.session_ids):
            raise ValueError("session_ids names a session twice")
        return self

    @property
    def most(self) -> int:
        """How many trajectories at most, where neither sessions nor a group are named."""
        return self.max_trajectories if self.max_trajectories is not None else DEFAULT_MAX_TRAJECTORIES


DEFAULT_MAX_TRAJECTORIES: Final = 64


class ExportedSession(Reply):
    session_id: str
    status: ExportStatus


class ExportedTurn(Reply):
    turn_id: str
    parent_id: str | None
    reward: float | None
    finish_reason: str
    mixed_cache: bool
    branch_reason: BranchReason | None = None
    constrained: Grammar | None = None
    biased_by: list[str] | None = None
    message: dict[str, Any]


class ExportedRow(Reply):
    """One sequence. `tensors` is None where they came as safetensors; as shards they are references."""

    turn_ids: list[str]
    reward: float | None
    tensors: dict[str, list[Any] | dict[str, Any]] | None = None


class ExportedTrajectory(Reply):
    trajectory_id: str
    session_id: str
    group_id: str
    task_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    marked: str | None = None
    """After a recovery: `newer` or `older_run`."""
    oldest_version: int | None = None
    """The smallest weight version of a token that is trained; None where there is none."""
    turns: list[ExportedTurn]
    rows: list[ExportedRow]


class Export(Covering):
    lease_id: str | None
    expires_in: float | None
    run: int
    version: int
    sessions: list[ExportedSession]
    trajectories: list[ExportedTrajectory]


class AckLease(Request):
    """POST /leases/{id}/ack, /release; all that is leased unless named."""

    trajectory_ids: Annotated[list[Id], Field(max_length=100_000)] | None = None


class RenewLease(Request):
    lease_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 600.0


class Acknowledged(Answered):
    lease_id: str
    acknowledged: list[str]


class Released(Answered):
    lease_id: str
    released: list[str]


class Renewed(Answered):
    lease_id: str
    expires_in: float


# Weight versions and pause


class SetVersion(Request):
    version: Whole
    epoch: Epoch | None = None


class Recover(Request):
    """POST /recover: a new run, which alone may go back to an older version."""

    version: Whole
    run: Run
    newer: Literal["drop", "keep"] = "drop"
    open: LeftOpen = "keep"
    confirm: bool = False
    """Drop, too, where that goes to less than half of the fleet's version."""


class Pause(Request):
    mode: PauseMode = "abort"
    timeout: Seconds = 60.0
    epoch: Epoch | None = None


class Continue(Request):
    epoch: Epoch | None = None


class WeightsState(Reply):
    """Where the weights are."""

    run: int
    version: int
    epoch: int
    paused: bool
    mode: str | None = None
    paused_since: float | None = None
    past_max_hold: bool = False
    """Calls are answered 503, as the pause has lasted too long for them."""


class ProxyWeights(WeightsState):
    """The weights as one proxy knows them."""

    ordinal: int | None = None


class Weights(WeightsState, Covering):
    """What /version, /recover, /pause and /continue answer."""

    proxies: list[ProxyWeights] = Field(default_factory=list)
    """Of GET /version in fleet scope."""
    engines_failed: dict[str, str] = Field(default_factory=dict)
    """Of a continue: engines that did not confirm, by address."""
    recovered: dict[str, int] = Field(default_factory=dict)
    """Of a recovery: what was marked, dropped and kept, and how many sessions it ended."""


# Shards, drain, dumps


DEFAULT_SHARD_TTL: Final = 86400.0
"""Seconds that a shard is kept that was put for no session and no time."""
SHARD_BATCH_BYTES: Final = 4 * 2**30
"""Bytes of tensors in the answer to one batch."""


class StoredShard(Covering):
    """What PUT /shards/{id} answers: a reference to the shard, and how long it is kept."""

    type: str = "remote_tensor"
    shard_id: str
    owner: str
    shape: list[int]
    dtype: str
    bytes: int
    session_id: str | None = None
    expires_in: float | None = None


class ShardBatch(Request):
    ids: Annotated[list[Id], Field(max_length=10_000)]
    partial: bool = False


class DeleteShards(Request):
    ids: Annotated[list[Id], Field(max_length=100_000)]


class DeletedShards(Covering):
    deleted: int
    bytes: int


class AskDrain(Request):
    id: Id
    reason: Annotated[str, Field(max_length=1024)] = ""
    mode: DrainMode = "quiesce"
    then: DrainThen = "stay"
    ttl: Annotated[float, Field(gt=0, le=30 * 86400)] = 300.0


class DrainState(Reply):
    id: str
    mode: str
    since: float | None
    deadline: float | None = None
    reason: str = ""
    then: str = "stay"
    expires: float | None = None
    holding: bool = False
    held: int = 0
    under_way: int | None = None


class Drain(DrainState):
    since: float


class DrainAnswer(DrainState, Answered):
    """POST /drain: the drain as it is now; `done` where it has led to a restart already."""

    done: bool


class DrainUndone(Answered):
    undone: str | None


class ImportDumps(Request):
    """POST /dumps/import: all of them, or none."""

    names: Annotated[list[Annotated[str, Field(min_length=1, max_length=512)]], Field(min_length=1, max_length=1000)]
    incomplete: bool = False
    """Take those, too, whose shards could not all be brought in."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if len(set(self.names)) != len(self.names):
            raise ValueError("names has a dump twice")
        return self


class ImportedDump(Reply):
    name: str
    session_id: str
    trajectory_id: str
    turns: int


class ImportedDumps(Covering):
    imported: list[ImportedDump]


class Retired(Covering):
    """POST /dumps: everything that has no call in flight and is not leased was dumped and freed."""

    reclaimed: int
    """Sessions that were, just now."""
    failing: dict[str, str]
    """Groups that could not be dumped, and are kept: what is wrong, by group."""


class ListedDump(Reply):
    """A file of a proxy's dump folder; `trajectory` is a number, None for what was still open."""

    name: str
    session_id: str
    trajectory: int | None
    state: DumpState
    bytes: int
    modified: float
    """Seconds since the epoch."""
    group_id: str | None = None
    """This and what follows is None where the file's first line can't be read: then `fault` says why."""
    task_id: str | None = None
    reason: str | None = None
    dumped_at: float | None = None
    fault: str | None = None
    ordinal: int = 0


class DumpList(Paged):
    """GET /dumps."""

    dumps: list[ListedDump]


# Proxies, figures, sums


class Alive(Reply):
    status: str


class Readiness(Reply):
    """GET /ready; 503 where it is not."""

    ready: bool
    state: str
    ordinal: int
    store_id: str
    sessions_open: int
    room: bool
    """For another session."""
    proxies_ever: int
    weights: dict[str, Any]


class ServedModel(Reply):
    """As the OpenAI API has it."""

    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int | None


class ServedModels(Reply):
    object: str
    data: list[ServedModel]


class Proxy(Reply):
    ordinal: int
    url: str
    state: str
    sessions_open: int = 0


class ProxyList(Answered):
    proxies: list[Proxy]


class Ledger(Reply):
    """Promise 5: created + imported = live + leased + acknowledged + dumped + discarded."""

    created: int = 0
    imported: int = 0
    live: int = 0
    leased: int = 0
    acknowledged: int = 0
    dumped: int = 0
    discarded: dict[str, int] = Field(default_factory=dict)

    @property
    def balanced(self) -> bool:
        """Whether the two sides are equal."""
        kept = self.live + self.leased + self.acknowledged + self.dumped
        return self.created + self.imported == kept + sum(self.discarded.values())


class ShardSums(Reply):
    count: int = 0
    bytes: int = 0
    orphans: int = 0


class Audit(Covering):
    turns: Ledger
    sessions: Ledger
    shards: ShardSums = ShardSums()
    keys: int = 0
    balanced: bool


class Boot(Reply):
    time: float
    reason: str
    id: str | None = None
    rss_before: int | None = None
    rss_after: int | None = None


class SessionCounts(Reply):
    open: int
    ended: int


class Stats(Covering):
    ordinal: int
    store_id: str
    pid: int
    run: int
    version: int
    epoch: int
    paused: bool
    past_max_hold: bool = False
    sessions: SessionCounts
    in_flight: int
    rss_bytes: int
    rss_anon_bytes: int
    rss_file_bytes: int
    vms_bytes: int
    caches: dict[str, int] = Field(default_factory=dict)
    in_flight_bytes: int = 0
    most_in_flight_bytes: int = 0
    trims: dict[str, Any] = Field(default_factory=dict)
    collections: dict[str, Any] = Field(default_factory=dict)
    drain: Drain | None = None
    boots: list[Boot] = Field(default_factory=list)
    store: dict[str, bool] = Field(default_factory=dict)
    """full: a generation would be refused now for want of room; reserved: the room that freeing needs is held."""
    dump: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    gateway: dict[str, Any] = Field(default_factory=dict)
    """loses: what does not reach the engines; null while that is not known. probes: requests sent to find out."""
    refused: dict[str, int] = Field(default_factory=dict)
    prefix_checks: dict[str, int] = Field(default_factory=dict)
    follow_ups: dict[str, int] = Field(default_factory=dict)
    """extending, branch: turns since the process started that follow an answer."""
    branches: dict[str, int] = Field(default_factory=dict)
    """Turns since the process started that start a branch, by the field that differs."""


class FleetStats(Covering):
    """GET /stats?scope=fleet."""

    proxies: list[Stats]
