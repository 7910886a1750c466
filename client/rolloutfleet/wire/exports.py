"""What proxies keep for trainers: trajectories under a lease, shards and dumps."""

from operator import not_
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from rolloutfleet.wire.base import Answered, Covering, EachOnce, Id, Paged, Reply, Request
from rolloutfleet.wire.sessions import LineageKind, Outcome, TurnFacts

LEASE_ID_HEADER: Final = "Lease-Id"
EXPORT_METADATA_KEY: Final = "export"
"""The key under a safetensors header's `__metadata__` that holds an export's JSON."""

ExportStyle = Literal["concat", "individual"]
LineageUse = Literal["train", "context"]
Credit = Literal["branch", "session"]
TRAINED_OUTCOMES: Final[tuple[Outcome, ...]] = ("completed", "truncated")
Included = Literal["messages", "tools"]
ExportStatus = Literal["leased", "damaged", "not_ready", "leased_elsewhere", "evaluation", "gone", "unknown"]
DumpState = Literal["ready", "importing", "imported"]


# Export and leases


class AskExport(Request):
    """POST /export: these sessions, this group, or any trajectories up to a number of them."""

    session_ids: Annotated[list[Id], Field(min_length=1, max_length=10_000), EachOnce] | None = None
    group_id: Id | None = None
    max_trajectories: Annotated[int, Field(ge=1, le=100_000)] | None = None
    style: ExportStyle = "concat"
    discount: Annotated[float, Field(ge=0, le=1)] = 1.0
    lineages: dict[LineageKind, LineageUse] = Field(default_factory=dict, strict=False, exclude_if=not_)
    """What turns of each kind are for; `train` where a kind is not named."""
    credit: Credit = "session"
    """The reward of rows that have none of their own: the session's, which was given without naming a turn, or none."""
    train: list[Outcome] = Field(
        default_factory=lambda: list(TRAINED_OUTCOMES),
        max_length=4,
        strict=False,
        exclude_if=lambda value: tuple(value) == TRAINED_OUTCOMES,
    )
    """Outcomes of sessions that are trained. Rows of others have no token to train, unless the session is rewarded."""
    include: list[Included] = Field(default_factory=list, max_length=2, strict=False, exclude_if=not_)
    """Parts of rows beside their tensors: the messages of their conversation, the tools that were declared."""
    as_: Annotated[Literal["tensors", "shards"], Field(alias="as")] = "tensors"
    lease_seconds: Annotated[float, Field(gt=0, le=7 * 86400)] = 600.0

    @model_validator(mode="after")
    def _one_choice(self) -> Self:
        chosen = [self.session_ids, self.group_id, self.max_trajectories]
        if sum(choice is not None for choice in chosen) > 1:
            raise ValueError("session_ids, group_id and max_trajectories exclude each other")
        return self

    @property
    def context(self) -> frozenset[LineageKind]:
        """The kinds of lineages that are not trained."""
        return frozenset(kind for kind, use in self.lineages.items() if use == "context")

    @property
    def most(self) -> int:
        """How many trajectories at most, where neither sessions nor a group are named."""
        return self.max_trajectories if self.max_trajectories is not None else DEFAULT_MAX_TRAJECTORIES


DEFAULT_MAX_TRAJECTORIES: Final = 64


class ExportedSession(Reply):
    session_id: str
    status: ExportStatus


class ExportedTurn(TurnFacts):
    message: dict[str, Any]


class ExportedRow(Reply):
    """One sequence. `tensors` is None where they came as safetensors; as shards they are references."""

    turn_ids: list[str]
    reward: float | None
    tensors: dict[str, list[Any] | dict[str, Any]] | None = None
    messages: list[dict[str, Any]] | None = Field(default=None, exclude_if=lambda value: value is None)
    """In OpenAI's form, from the first one to the last turn's answer; None where they are not included."""
    tools: list[Any] | None = Field(default=None, exclude_if=lambda value: value is None)
    """Empty where none were declared, None where they are not included."""


class ExportedTrajectory(Reply):
    trajectory_id: str
    session_id: str
    group_id: str
    task_id: str | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    outcome: Outcome | None = None
    """Of its session; None while that is open, and of one that ended under an earlier version."""
    outcome_reason: str | None = None
    marked: str | None = None
    """After a recovery: `newer` or `older_run`."""
    oldest_version: int | None = None
    """The smallest weight version of its turns' tokens, of those that are context too; None where there is none."""
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


# Shards and dumps


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


DumpFile = Annotated[str, Field(min_length=1, max_length=512)]


class ImportDumps(Request):
    """POST /dumps/import: all of them, or none."""

    names: Annotated[list[DumpFile], Field(min_length=1, max_length=1000), EachOnce]
    incomplete: bool = False
    """Take those, too, whose shards could not all be brought in."""


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


class Glance(Reply):
    """What a list shows of a dump's head."""

    group_id: str | None = None
    """This and what follows is None where the file's first line can't be read: then `fault` says why."""
    task_id: str | None = None
    reason: str | None = None
    dumped_at: float | None = None
    """Seconds since the epoch."""
    fault: str | None = None


class ListedDump(Glance):
    """A file of a proxy's dump folder; `trajectory` is a number, None for what was still open."""

    name: str
    session_id: str
    trajectory: int | None
    state: DumpState
    bytes: int
    modified: float
    """Seconds since the epoch."""
    ordinal: int = 0


class DumpList(Paged):
    """GET /dumps."""

    dumps: list[ListedDump]
