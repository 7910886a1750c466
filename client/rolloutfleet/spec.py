"""The RolloutFleet resource: every field, its default and its rule, written once.

The CRD, the proxies' settings, the local fleet and the documentation come from these models. Fields
are snake_case here and camelCase in a file; times are seconds and sizes are bytes here, and text like
`90s` or `4Gi` in a file. What Kubernetes defines (pod templates, volumes, tolerations) is passed on as
it is.

A local fleet (`rolloutfleet up`) reads the same resource. There `engine` means simulated engines,
tuned by `engine.simulated`; `gateway.engines.urls` means engines that already run somewhere; what only
a cluster has (images, resources, node selectors, pod templates) is read, checked and left unused.
"""

import posixpath
import re
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    JsonValue,
    PlainValidator,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from rolloutfleet.status import FleetStatus
from rolloutfleet.units import Duration, Quantity, parse_quantity

API_VERSION: Final = "rolloutfleet.dev/v1alpha1"
KIND: Final = "RolloutFleet"

SIMULATED_MODEL = "simulated"
"""As `model`: the small model (tokenizer and chat format) that ships with the simulated engine."""

DUMP_ROOT = "/dumps"
DEFAULT_STORAGE_BYTES = 20 * 2**30
STORE_SHARE_OF_STORAGE = 0.8
MEMORY_LIMIT_FACTOR = 1.3

_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_MEMORY = "memory"

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
AtLeastOne = Annotated[int, Field(ge=1, le=2**31 - 1)]
Name = Annotated[str, Field(min_length=1, max_length=253)]
PositiveDuration = Annotated[Duration, Field(gt=0)]
PositiveQuantity = Annotated[Quantity, Field(gt=0)]
KubernetesObject = dict[str, JsonValue]


def check_address(url: str) -> str:
    """An http(s) address with a host and no query, without a trailing slash; ValueError otherwise."""
    try:
        parts = urlsplit(url)
        port_is_fine = parts.port is None or parts.port > 0
    except ValueError as error:
        raise ValueError(f"{url!r} is no address: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or not port_is_fine:
        raise ValueError(f"{url!r} is no address; write it like http://10.0.0.5:30000")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r}: an address has no query and no fragment")
    return url.rstrip("/")


Address = Annotated[str, Field(max_length=2048), AfterValidator(check_address)]


class SpecModel(BaseModel):
    """What all parts of the resource share: unknown fields are errors, and nothing is coerced."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        extra="forbid",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


def check_amount(value: object) -> str | int | float:
    """An amount of any resource, as Kubernetes writes it: text like `500m`, or a number."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError("an amount is text like 500m or 4Gi, or a number")
    return value


ResourceAmount = Annotated[
    str | int | float,
    PlainValidator(check_amount, json_schema_input_type=str | int),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string"}], "x-kubernetes-int-or-string": True}),
]


class TokenizerSpec(SpecModel):
    """Where tokenizer and chat format come from; the model itself unless said here."""

    path: str | None = None
    """A directory with the tokenizer's files: mounted into the pod, or on this machine."""
    hub: str | None = None
    """A name on the Hugging Face hub; fetched once to the proxy's volume."""
    token_secret: Name | None = None
    """The Secret (key `token`) for a gated repository on the hub."""
    renderer: str | None = None
    """The chat format's family, as the `renderers` library names it; found from the model unless named."""
    thinking_retention: Literal["all", "tool_cycle", "template"] = "all"
    """Which earlier reasoning stays in the prompt when a user message comes. `all` keeps every token and
    so extends the parent turn; `template` does what the model's template does, and starts a new branch."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None and self.hub is not None:
            raise ValueError("path and hub are both given; keep one")
        return self


class StorageSpec(SpecModel):
    """The volume of one proxy: either a claim, or `ephemeral`."""

    size: PositiveQuantity | None = None
    """The claim's size, 20Gi unless said; it can grow, never shrink."""
    class_name: Name | None = None
    """The storage class; the cluster's default unless named."""
    adopt: str | None = None
    """The uid of an earlier fleet of this name whose data may be opened."""
    ephemeral: bool = False
    """True: the data lives and dies with the pod."""

    @model_validator(mode="after")
    def _claim_or_ephemeral(self) -> Self:
        of_a_claim = [name for name in ("size", "class_name", "adopt") if getattr(self, name) is not None]
        if self.ephemeral and of_a_claim:
            given = ", ".join(to_camel(name) for name in of_a_claim)
            raise ValueError(f"ephemeral storage has no claim, so {given} can't be set with it")
        return self

    @property
    def capacity(self) -> int | None:
        """Bytes of the claim; None where storage is ephemeral."""
        if self.ephemeral:
            return None
        return self.size if self.size is not None else DEFAULT_STORAGE_BYTES


class ResourcesSpec(SpecModel):
    """Kubernetes' resource requests and limits of a container."""

    requests: dict[str, ResourceAmount] = Field(default_factory=dict)
    limits: dict[str, ResourceAmount] = Field(default_factory=dict)
    claims: list[KubernetesObject] = Field(default_factory=list)

    @field_validator("requests", "limits")
    @classmethod
    def _memory_in_bytes(cls, amounts: dict[str, str | int | float]) -> dict[str, str | int | float]:
        if _MEMORY in amounts:
            try:
                parse_quantity(amounts[_MEMORY])
            except ValueError as error:
                raise ValueError(f"memory: {error}") from None
        return amounts


class ProxiesSpec(SpecModel):
    """The proxies: how many, how big, where."""

    replicas: Annotated[int, Field(ge=0, le=10_000)] = 1
    resources: ResourcesSpec = ResourcesSpec()
    """The memory limit is 1.3 times `memory.rssBudget` unless set."""
    storage: StorageSpec = StorageSpec()
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[KubernetesObject] = Field(default_factory=list)
    pod_template: KubernetesObject = Field(default_factory=dict)
    """Merged over the generated pod by Kubernetes' merge keys."""


class DumpKeepSpec(SpecModel):
    """How much a dump folder keeps; without a bound, all."""

    age: PositiveDuration | None = None
    bytes: PositiveQuantity | None = None


class DumpSpec(SpecModel):
    """Where the turns of a session that went stale are written."""

    path: str = DUMP_ROOT
    """`/dumps` or a folder below; empty for no dumps. A local fleet puts `/dumps` into its state folder."""
    volume: KubernetesObject | None = None
    """Any pod volume source, mounted at /dumps; the proxy's own claim unless given."""
    keep: DumpKeepSpec = DumpKeepSpec()

    @field_validator("path")
    @classmethod
    def _within_the_mount(cls, path: str) -> str:
        if path == "":
            return path
        plain = posixpath.normpath(path)
        if plain != path.rstrip("/") or not f"{plain}/".startswith(f"{DUMP_ROOT}/"):
            raise ValueError(f"{path!r} must be {DUMP_ROOT} or a folder below it, without .. in it")
        return plain


class LimitsSpec(SpecModel):
    """Bounds of one proxy (`sessions`, `bytes`) and of one session (`turns`, `tokens`); unset is off."""

    sessions: AtLeastOne | None = None
    bytes: PositiveQuantity | None = None
    """80 % of the storage unless set."""
    turns: AtLeastOne | None = None
    tokens: Annotated[int, Field(ge=1)] | None = None


class SessionsSpec(SpecModel):
    """How long sessions live, and how much they may hold."""

    stale_after: PositiveDuration = 3600.0
    """A session without a call for so long is stale: dumped and freed."""
    unclaimed_after: PositiveDuration = 86400.0
    """A closed session whose trajectories nobody takes goes stale after this."""
    cleanup_interval: PositiveDuration = 60.0
    """How often stale sessions are looked for."""
    retry_grace: Duration = 10.0
    """A client that went away may come back for its turn this long; 0: its call ends at once."""
    max_hold: PositiveDuration = 300.0
    """How long a call waits in a pause before it gets 503."""
    dump: DumpSpec = DumpSpec()
    limits: LimitsSpec = LimitsSpec()


class MemorySpec(SpecModel):
    """When a proxy is restarted for its resident memory."""

    rss_budget: PositiveQuantity = 4 * 2**30
    samples: Annotated[int, Field(ge=1, le=1000)] = 3
    """So many samples in a row over the budget make a restart due."""
    interval: PositiveDuration = 15.0
    cooldown: Duration = 600.0
    """The shortest time between two restarts of one proxy."""
    restart: Literal["Process", "Container", "Pod"] = "Process"


class DisruptionSpec(SpecModel):
    """How much may be down by our own hand at once."""

    max_unavailable: AtLeastOne = 1
    drain_timeout: Duration = 60.0
    """How long a restart waits for calls in flight."""
    retire_timeout: Duration = 3600.0
    """How long a proxy that is scaled away waits for its sessions to end."""


class EngineSourceSpec(SpecModel):
    """Engines that somebody else runs: found by label in the namespace, or named by address."""

    selector: dict[str, str] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] = 30000
    """The engines' port, for those found by label."""
    urls: Annotated[list[Address], Field(max_length=1000)] | None = None

    @model_validator(mode="after")
    def _one_way_to_find_them(self) -> Self:
        if (self.selector is None) == (self.urls is None):
            raise ValueError("name the engines by either selector or urls")
        if self.selector is not None and not self.selector:
            raise ValueError("selector is empty; it would choose every pod in the namespace")
        if self.urls is not None:
            if not self.urls:
                raise ValueError("urls is empty; name at least one engine")
            if len(set(self.urls)) != len(self.urls):
                raise ValueError("urls names an engine twice")
        return self


class GatewaySpec(SpecModel):
    """The SGLang gateway that spreads generation over engines."""

    replicas: Annotated[int, Field(ge=1, le=100)] = 1
    policy: Literal["manual", "cache_aware", "power_of_two", "round_robin", "random"] = "manual"
    """Only `manual` keeps a session on one engine, by its routing key."""
    engines: EngineSourceSpec | None = None
    """Engines that run already; leave it out where `engine` is given."""
    api_key_secret: Name | None = None
    """The Secret (key `api-key`) with the key that engines ask for."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: list[KubernetesObject] = Field(default_factory=list)
    resources: ResourcesSpec = ResourcesSpec()
    pod_template: KubernetesObject = Field(default_factory=dict)


class SimulatedSpec(SpecModel):
    """What a simulated engine does; it answers like SGLang, from a seed, without a GPU."""

    latency: Duration = 0.05
    """Seconds before the first token of each request."""
    token_latency: Duration = 0.001
    """Seconds for each further token."""
    noncanonical: Annotated[float, Field(ge=0, le=1)] = 0.3
    """The share of tokens given as other ids than their tokenizer would choose; the text is the same."""
    seed: Count = 0


class EngineSpec(SpecModel):
    """Engines that the fleet runs itself: SGLang on a cluster, simulated engines in a local fleet."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    gpus: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of one engine; a simulated one uses none."""
    args: Annotated[list[str], Field(max_length=200)] = Field(default_factory=list)
    """Further arguments of SGLang; a simulated engine takes none of them."""
    simulated: SimulatedSpec = SimulatedSpec()
    """How the simulated engines of a local fleet behave; nothing on a cluster."""
    pod_template: KubernetesObject = Field(default_factory=dict)


class RotateSpec(SpecModel):
    """Change the id to make a new admin key; the old one is valid for `overlap`."""

    id: Name


class AuthSpec(SpecModel):
    """The admin key."""

    secret: Name | None = None
    """Your own Secret with the admin key; one is generated unless named."""
    rotate: RotateSpec | None = None
    overlap: Duration = 3600.0


class EndpointSpec(SpecModel):
    """How agents outside reach the fleet."""

    public_url: Annotated[Address | None, Field(alias="publicURL")] = None
    ingress: KubernetesObject | None = None


class RestartSpec(SpecModel):
    """Change the id to ask for a rolling restart."""

    id: Name


class FleetSpec(SpecModel):
    """What is asked for."""

    model: Annotated[str, Field(min_length=1, max_length=512)]
    """What the engines serve; it also names tokenizer and chat format. A name on the hub, a directory,
    or `simulated` for the small model that ships with the simulated engine."""
    tokenizer: TokenizerSpec = TokenizerSpec()
    suspend: bool = False
    """True: scale to nothing, free the GPUs, keep the data."""
    image: str | None = None
    image_pull_secrets: list[KubernetesObject] = Field(default_factory=list)
    proxies: ProxiesSpec = ProxiesSpec()
    sessions: SessionsSpec = SessionsSpec()
    memory: MemorySpec = MemorySpec()
    disruption: DisruptionSpec = DisruptionSpec()
    gateway: GatewaySpec = GatewaySpec()
    engine: EngineSpec | None = None
    """Given: the fleet runs its engines itself."""
    auth: AuthSpec = AuthSpec()
    endpoint: EndpointSpec = EndpointSpec()
    network_policy: KubernetesObject | None = None
    """Given: a NetworkPolicy is made; none otherwise."""
    update_policy: Literal["Automatic", "OnRequest"] = "Automatic"
    restart: RestartSpec | None = None

    @model_validator(mode="after")
    def _one_engine_source(self) -> Self:
        if self.engine is None and self.gateway.engines is None:
            raise ValueError(
                "no engines: give gateway.engines.selector or gateway.engines.urls for engines that run "
                "already, or engine for engines of the fleet's own"
            )
        if self.engine is not None and self.gateway.engines is not None:
            raise ValueError("gateway.engines and engine are both given; keep one source of engines")
        return self

    @model_validator(mode="after")
    def _budget_below_limit(self) -> Self:
        limit = memory_limit(self)
        if self.memory.rss_budget >= limit:
            raise ValueError(
                f"memory.rssBudget ({self.memory.rss_budget} bytes) must be below "
                f"proxies.resources.limits.memory ({limit} bytes), or the kernel kills the proxy first"
            )
        return self


class Metadata(SpecModel):
    """The part of Kubernetes' metadata that means something here; the rest is let through."""

    model_config = ConfigDict(extra="allow")

    name: str
    namespace: str | None = None

    @field_validator("name")
    @classmethod
    def _short_label(cls, name: str) -> str:
        if len(name) > 40 or not re.fullmatch(_NAME, name):
            raise ValueError(
                f"{name!r} is no fleet name: at most 40 of a-z, 0-9 and -, beginning with a letter and "
                "not ending with -"
            )
        return name


class RolloutFleet(SpecModel):
    """The whole resource, as `kubectl apply` and `rolloutfleet up` read it."""

    api_version: Literal["rolloutfleet.dev/v1alpha1"] = API_VERSION
    kind: Literal["RolloutFleet"] = KIND
    metadata: Metadata
    spec: FleetSpec
    status: FleetStatus | None = None
    """Written by the operator; means nothing in a file that is applied."""


def memory_limit(spec: FleetSpec) -> int:
    """Bytes that a proxy's container may use: as set, else 1.3 times the budget."""
    from_resources = spec.proxies.resources.limits.get(_MEMORY)
    if from_resources is None:
        return int(spec.memory.rss_budget * MEMORY_LIMIT_FACTOR)
    return parse_quantity(from_resources)


def sessions_in_force(spec: FleetSpec) -> SessionsSpec:
    """The sessions' settings with the one default that other fields decide: the store's byte limit."""
    limits, capacity = spec.sessions.limits, spec.proxies.storage.capacity
    if limits.bytes is not None or capacity is None:
        return spec.sessions
    filled = limits.model_copy(update={"bytes": int(capacity * STORE_SHARE_OF_STORAGE)})
    return spec.sessions.model_copy(update={"limits": filled})
