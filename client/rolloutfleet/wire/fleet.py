"""How a fleet is: its weights, drains, proxies, figures and sums."""

from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from rolloutfleet.wire.base import Answered, Covering, Id, Reply, Request, Seconds, Whole

LAST_EPOCH: Final = 2**31 - 2
"""The one after it is still a whole number here: whoever counts on from it is told no, and by every proxy alike."""
Epoch = Annotated[int, Field(ge=0, le=LAST_EPOCH)]
LAST_RUN: Final = 2**31 - 2
"""As with epochs: whoever asks for the one after it is told no."""
Run = Annotated[int, Field(ge=0, le=LAST_RUN)]
PauseMode = Literal["abort", "wait", "retract", "in_place"]
LeftOpen = Literal["keep", "close", "delete"]
"""What a recovery does with sessions that an earlier run left open."""
DrainMode = Literal["cordon", "quiesce"]
DrainThen = Literal["stay", "restart", "exit"]


# Weight versions and pause


class SetVersion(Request):
    version: Whole
    epoch: Epoch | None = None
    flush_cache: bool | None = None
    """Whether the engines' prefix caches were flushed with it, or since. None: by an update, unless it was made in an
    `in_place` pause."""


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


class LoadFromDisk(Request):
    """POST /load-from-disk: pause, load a checkpoint into every engine, set the version, continue."""

    path: Annotated[str, Field(min_length=1, max_length=4096)]
    """Of the checkpoint, as the engines see it."""
    version: Whole
    mode: PauseMode = "abort"
    flush_cache: bool | None = None
    """Whether the engines flush their prefix caches. None: they do, but for `in_place`, where they can't."""
    timeout: Seconds = 60.0
    """The pause's."""
    load_timeout: Seconds = 600.0
    """Time for an engine to load."""
    epoch: Epoch | None = None

    @property
    def flushes(self) -> bool:
        """Whether the engines are told to flush."""
        return self.mode != "in_place" if self.flush_cache is None else self.flush_cache

    @model_validator(mode="after")
    def _flush_can_be(self) -> Self:
        if self.flush_cache and self.mode == "in_place":
            raise ValueError("flush_cache can't be true in mode in_place, which leaves the cache in use")
        return self


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
    """The answer of /version, /recover, /pause, /continue and /load-from-disk."""

    proxies: list[ProxyWeights] = Field(default_factory=list)
    """Of GET /version in fleet scope."""
    engines_failed: dict[str, str] = Field(default_factory=dict)
    """Of a continue: engines that did not confirm, by address."""
    recovered: dict[str, int] = Field(default_factory=dict)
    """Of a recovery: what was marked, dropped and kept, and how many sessions it ended."""


# Drains


class AskDrain(Request):
    id: Id
    reason: Annotated[str, Field(max_length=1024)] = ""
    mode: DrainMode = "quiesce"
    then: DrainThen = "stay"
    ttl: Annotated[float, Field(gt=0, le=30 * 86400)] = 300.0


class Drain(Reply):
    id: str
    mode: str
    since: float | None
    """None where it has led to a restart already."""
    deadline: float | None = None
    reason: str = ""
    then: str = "stay"
    expires: float | None = None
    holding: bool = False
    held: int = 0
    under_way: int | None = None


class DrainAnswer(Drain, Answered):
    """POST /drain: the drain as it is now; `done` where it has led to a restart already."""

    done: bool


class DrainUndone(Answered):
    undone: str | None


# Proxies, figures, sums


class Alive(Reply):
    status: str


class Readiness(Reply):
    """GET /ready; 503 where it is not."""

    ready: bool
    state: str
    problem: str | None = None
    """Why it is not, beyond its state: who has its store locked."""
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
    missing: dict[str, int] = Field(default_factory=dict)
    """Commits, turns and sessions that a start did not find in its store any more."""
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
    held: dict[str, int] = Field(default_factory=dict)
    """turns, sessions: live or leased."""
    leases: int | None = None
    """In force; None of an older proxy."""
    in_flight: int
    rss_bytes: int
    rss_anon_bytes: int
    rss_file_bytes: int
    vms_bytes: int
    rss_budget_bytes: int | None = None
    """`memory.rssBudget`; None of an older proxy."""
    caches: dict[str, int] = Field(default_factory=dict)
    in_flight_bytes: int = 0
    most_in_flight_bytes: int = 0
    trims: dict[str, Any] = Field(default_factory=dict)
    collections: dict[str, Any] = Field(default_factory=dict)
    drain: Drain | None = None
    boots: list[Boot] = Field(default_factory=list)
    store: dict[str, bool] = Field(default_factory=dict)
    """full: a generation would be refused now for want of room; reserved: the room that freeing needs is held."""
    check: dict[str, Any] = Field(default_factory=dict)
    """state of the store's check after a crash: running, sound or damaged; null without one. found: what is damaged."""
    dump: dict[str, Any] = Field(default_factory=dict)
    settings: dict[str, Any] = Field(default_factory=dict)
    gateway: dict[str, Any] = Field(default_factory=dict)
    """loses: what does not reach the engines; null while that is not known. probes: requests sent to find out."""
    refused: dict[str, int] = Field(default_factory=dict)
    tokens: dict[str, int] = Field(default_factory=dict)
    """prompt, completion: of the turns committed since the process started."""
    prefix_checks: dict[str, int] = Field(default_factory=dict)
    follow_ups: dict[str, int] = Field(default_factory=dict)
    """extending, branch: turns since the process started that follow an answer."""
    forks: dict[str, int] = Field(default_factory=dict)
    """Since the process started, by the field that differs."""


class FleetStats(Covering):
    """GET /stats?scope=fleet."""

    proxies: list[Stats]
