"""What one proxy process is told: the same for a pod and for a process of a local fleet.

A plain model; the proxy reads it from a file, the environment and flags. In a file the names are
snake_case, and what the resource defines (`sessions`, `tokenizer`) has its defaults and rules there.
"""

from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rolloutfleet.spec_fields import Address, PositiveDuration, PositiveQuantity
from rolloutfleet.spec_for_proxies import (
    CompatibilitySpec,
    InspectSpec,
    MemorySpec,
    ModelsSpec,
    SessionsSpec,
    TokenizerSpec,
    WeightsSpec,
)
from rolloutfleet.units import Duration, Quantity

MIB = 2**20

LIVE_SETTINGS: Final = frozenset(
    ("sessions", "inspect", "memory", "dump_dir", "kept_dir", "replicas", "lost_proxies", "generation", "checked")
)
"""Top-level settings that a running proxy takes from its file at once; the others wait for its next start."""
NOT_LIVE: Final = frozenset(("sessions.dump.volume",))
"""What of those is not: it is a matter of the pod."""


BODY_LIMIT: Final = 64 * MIB
"""The largest body of a request, unless `body_limit` says another."""
_PARTS: Final = 4
"""Of the memory budget, of which requests in flight have one."""
SMALLEST_BUDGET: Final = _PARTS * 2 * BODY_LIMIT
"""`ProxySettings.smallest_budget` where only the budget is set, as on a cluster."""


class SettingsModel(BaseModel):
    """What all parts of the settings share: unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PeersSettings(SettingsModel):
    """How a proxy's address follows from its ordinal."""

    template: str = "http://127.0.0.1:{port}"
    """A proxy's address; `{ordinal}` stands for its ordinal and `{port}` for its port."""
    base_port: Annotated[int, Field(ge=1, le=65535)] | None = None
    """If set, the port of ordinal i is base_port + i; otherwise every proxy has the same port."""
    ports: list[Annotated[int, Field(ge=1, le=65535)]] | None = None
    """If set, the port of each ordinal, in order; for proxies on one machine, on ports that were free."""

    @field_validator("template")
    @classmethod
    def _can_be_filled(cls, template: str) -> str:
        try:
            template.format(ordinal=0, port=1)
        except (KeyError, IndexError, ValueError):
            raise ValueError(f"{template!r} may hold {{ordinal}} and {{port}} only") from None
        return template

    def address(self, *, ordinal: int, port: int) -> str:
        """The address of a proxy; `port` is the own one, for peers that all have the same."""
        if self.ports is not None and ordinal < len(self.ports):
            port = self.ports[ordinal]
        elif self.base_port is not None:
            port = self.base_port + ordinal
        return self.template.format(ordinal=ordinal, port=port)


class LogSettings(SettingsModel):
    """What a proxy writes to standard error."""

    format: Literal["plain", "json"] = "plain"
    """One line per event, as `name=value` or as a JSON object."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is written. Above `info` the lines of calls are left out."""
    stats_interval: PositiveDuration = 30.0
    """How often a line with statistics of the process is written."""


class AllocatorSettings(SettingsModel):
    """Settings of the C library's allocator; without effect on systems without glibc."""

    trim: bool = True
    """Whether freed memory is returned to the system from time to time."""
    arenas: Annotated[int, Field(ge=0, le=1024)] = 1
    """Heaps that threads share; 0: glibc's default (eight per core)."""
    mmap_threshold: Quantity = 512 * 2**10
    """Blocks of at least this size are returned to the system when freed; 0: glibc's default (up to 32 MiB)."""


class MemorySettings(SettingsModel):
    """What a proxy knows of the resource's `memory`: it reports the budget, others act on it."""

    rss_budget: PositiveQuantity = MemorySpec().rss_budget
    """Resident memory of all processes above which an operator restarts the proxy; shown in /metrics and /stats."""


class ProxySettings(BaseModel):
    """Everything that a proxy process needs to know, and its defaults."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    fleet: str
    """The fleet's name."""
    model: str
    """The model's name at the engines."""
    models: ModelsSpec = ModelsSpec()
    """The names that agents may call it by; every name unless some are listed."""
    compatibility: CompatibilitySpec = CompatibilitySpec()
    """How agents' requests are read."""
    weights: WeightsSpec = WeightsSpec()
    """What is done about changes of the weights."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    """Where the tokenizer is; without path and hub, `model` names it."""
    ordinal: Annotated[int, Field(ge=0)] = 0
    """Which of the fleet's proxies this is, from 0."""
    replicas: Annotated[int, Field(ge=1)] = 1
    """How many proxies the fleet has; higher ordinals were removed by scaling down."""
    lost_proxies: list[Annotated[int, Field(ge=0)]] = []
    """Ordinals of proxies that will not answer soon, as their node is lost: calls for them are refused at once."""
    host: str = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    """The port to listen on."""
    state_dir: Path
    """The folder of the store, used by one process at a time."""
    dump_dir: Path | None = None
    """The folder used in place of /dumps; default `state_dir`/dumps."""
    kept_dir: Path | None = None
    """The folder of the copies that `inspect.keep` asks for, of this proxy alone; default `state_dir`/kept."""
    ephemeral: bool = False
    """Whether the store is lost with this proxy's pod."""
    fleet_uid: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """Which fleet the store belongs to: a store of another fleet is not opened. Unset: not checked."""
    adopt: Annotated[str, Field(min_length=1, max_length=253)] | None = None
    """The uid of an earlier fleet whose store may be opened, and then belongs to this fleet."""
    peers: PeersSettings = PeersSettings()
    public_url: Address | None = None
    """The address that sessions are given, instead of the owner's own."""
    service_url: Address | None = None
    """The address that all proxies share. Sessions of a fleet of several proxies are given it, unless `public_url` is
    set: whichever proxy a call reaches passes it on to the owner, and holds it while that restarts."""
    gateway_url: Address
    """Where the SGLang gateway is."""
    gateway_api_key_file: Path | None = None
    """The key that gateway and engines require; read again when the file changes."""
    gateway_control_key_file: Path | None = None
    """The key of the gateway's control plane, used for its `GET /workers`; if unset, the other key is used."""
    engine_urls: list[Address] = Field(default_factory=list)
    """Engines that get aborts and pauses; if empty, those of the gateway's `GET /workers`."""
    admin_key_file: Path | None = None
    """Admin keys, one per line. Required unless `host` is loopback: then a key is created in `state_dir`/admin.key."""
    sessions: SessionsSpec = SessionsSpec()
    inspect: InspectSpec = InspectSpec()
    memory: MemorySettings = MemorySettings()
    cache_bytes: PositiveQuantity | None = None
    """The size of all caches of a process together; by default an eighth of `memory.rss_budget`, and at most 64Mi."""
    api_docs: bool = False
    """`GET /docs` shows the API in a browser, without a key; its scripts come from a public CDN."""
    body_limit: PositiveQuantity = BODY_LIMIT
    """The largest request body."""
    shard_limit: PositiveQuantity = 1024 * MIB
    """The largest body of a shard, which is written straight to disk."""
    in_flight_bytes: PositiveQuantity | None = None
    """The bodies of all requests in flight, and their answers so far; above it a call is 429. By default a quarter of
    `memory.rss_budget`, and at least twice `body_limit`."""
    allocator: AllocatorSettings = AllocatorSettings()
    engine_timeout: PositiveDuration = 600.0
    """How long an engine may be silent, or a stream without a new token; then 504, and the call is not sent again."""
    abort_rounds: Annotated[int, Field(ge=1)] = 20
    """How often a turn may be interrupted by weight updates and continued; then it ends with `length`."""
    stream_comment: PositiveDuration = 3.0
    """How often a silent stream gets a keep-alive comment."""
    drain_timeout: PositiveDuration = 60.0
    """How long a drain waits for calls in flight before it aborts them."""
    leave_time: Duration = 0.0
    """The least duration of a drain that ends in an exit, in which load balancers learn that the proxy is leaving."""
    log: LogSettings = LogSettings()
    """The log."""
    generation: int = 0
    """The resource's generation that these settings come from; shown in /stats."""
    checked: bool = False
    """Whether an operator wrote and checked these settings: an unknown field then belongs to another release, and is
    ignored until the next restart. Otherwise it is an error."""

    @model_validator(mode="after")
    def _one_port_a_proxy(self) -> Self:
        if self.peers.ports is not None and len(self.peers.ports) < self.replicas:
            raise ValueError("peers.ports names fewer proxies than replicas")
        return self

    @model_validator(mode="after")
    def _one_body_fits(self) -> Self:
        if self.most_in_flight < 2 * self.body_limit:
            raise ValueError("in_flight_bytes must be at least twice body_limit")
        return self

    @property
    def most_in_flight(self) -> int:
        """`in_flight_bytes`, or what follows from the budget, in bytes."""
        return self.in_flight_bytes or max(self.memory.rss_budget // _PARTS, 2 * self.body_limit)

    @property
    def smallest_budget(self) -> int:
        """The smallest `memory.rss_budget` whose quarter has room for two bodies, or for `in_flight_bytes`; bytes."""
        return _PARTS * (self.in_flight_bytes or 2 * self.body_limit)

    @property
    def most_cached(self) -> int:
        """`cache_bytes`, or what follows from the budget, in bytes."""
        return self.cache_bytes or min(self.memory.rss_budget // 8, 64 * MIB)

    def address_of(self, ordinal: int) -> str:
        """The address under which peers and, without a public URL, agents reach that proxy."""
        return self.peers.address(ordinal=ordinal, port=self.port)
