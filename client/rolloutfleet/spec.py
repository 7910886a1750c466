"""The RolloutFleet resource: every field, its default and its rule, written once.

The CRD, the local fleet and the documentation come from these models and those of `spec_for_proxies.py`,
which the proxies' settings use too. Fields are snake_case here and camelCase in a file; times are seconds
and sizes are bytes here, and text like `90s` or `4Gi` in a file. What Kubernetes defines (pod templates,
volumes, tolerations) is passed on as it is.

A local fleet (`rolloutfleet up`) reads the same resource. There `engine` means simulated engines,
tuned by `engine.simulated`; `gateway.engines.urls` means engines that already run somewhere; what only
a cluster has (images, resources, node selectors, pod templates) is read, checked and left unused.
"""

import json
import re
from collections.abc import Sequence
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator
from pydantic.alias_generators import to_camel

from rolloutfleet.spec_fields import (
    EACH_ONCE,
    Address,
    AtLeastOne,
    Count,
    KubernetesObject,
    Labels,
    ModelName,
    Name,
    ObjectName,
    PositiveQuantity,
    ResourceAmounts,
    SpecModel,
    cel,
    cel_bytes,
)
from rolloutfleet.spec_for_proxies import (
    STORE_SHARE_OF_STORAGE,
    CompatibilitySpec,
    InspectSpec,
    MemorySpec,
    ModelsSpec,
    SessionsSpec,
    TokenizerSpec,
    WeightsSpec,
)
from rolloutfleet.status import FleetStatus
from rolloutfleet.units import Duration, parse_quantity

API_VERSION: Final = "rolloutfleet.dev/v1alpha1"
KIND: Final = "RolloutFleet"

SIMULATED_MODEL = "simulated"
"""As `model`: the small model (tokenizer and chat format) that ships with the simulated engine."""

DEFAULT_STORAGE_BYTES = 20 * 2**30
_DEFAULT_SIZE = f"'{DEFAULT_STORAGE_BYTES}'"
MEMORY_LIMIT_FACTOR = 1.3

_NAME = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_MEMORY = "memory"
LONGEST_NAME: Final = 40
"""Leaves room for what children add: a StatefulSet with a longer name never gets a pod."""

_LIMIT_OF_MEMORY = "self.proxies.resources.limits['memory']"


class StorageSpec(SpecModel):
    """The volume of one proxy: either a claim, or `ephemeral`."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "!self.ephemeral || !(has(self.size) || has(self.className) || has(self.adopt) || has(self.nodeLocal))",
                "ephemeral storage has no claim, so size, className, adopt and nodeLocal can't be set with it",
            ),
            ("self.ephemeral == oldSelf.ephemeral", "ephemeral can't change: create another fleet"),
            (
                "has(self.className) == has(oldSelf.className)"
                " && (!has(self.className) || self.className == oldSelf.className)",
                "className can't change: claims keep their class",
            ),
            (
                f"{cel_bytes('has(self.size) ? self.size : ' + _DEFAULT_SIZE)}.compareTo("
                f"{cel_bytes('has(oldSelf.size) ? oldSelf.size : ' + _DEFAULT_SIZE)}) >= 0",
                "size only grows",
            ),
        )
    )

    size: PositiveQuantity | None = None
    """The claim's size, by default 20Gi; it can grow, but never shrink."""
    class_name: ObjectName | None = None
    """The storage class; by default the cluster's default class."""
    adopt: str | None = None
    """The uid of an earlier fleet of this name whose data may be opened."""
    node_local: bool | None = None
    """Marks volumes as usable on one node only; by default read from their node affinity, where the operator may."""
    ephemeral: bool = False
    """Whether the data is lost with the pod."""

    @model_validator(mode="after")
    def _claim_or_ephemeral(self) -> Self:
        of_a_claim = [name for name in ("size", "class_name", "adopt", "node_local") if getattr(self, name) is not None]
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

    requests: ResourceAmounts = Field(default_factory=dict)
    """What the scheduler reserves."""
    limits: ResourceAmounts = Field(default_factory=dict)
    """What the container may use at most."""
    claims: list[KubernetesObject] = Field(default_factory=list)
    """Kubernetes' resource claims."""

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
    """How many proxies; `kubectl scale` changes it."""
    resources: ResourcesSpec = ResourcesSpec()
    """The memory limit defaults to 1.3 times `memory.rssBudget`."""
    storage: StorageSpec = StorageSpec()
    node_selector: Labels = Field(default_factory=dict)
    """Labels of the nodes that proxies run on."""
    tolerations: list[KubernetesObject] = Field(default_factory=list)
    """Taints that proxies tolerate."""
    pod_template: KubernetesObject = Field(default_factory=dict)
    """Merged over the generated pod by Kubernetes' merge keys."""


class DisruptionSpec(SpecModel):
    """How much the operator may take down at once."""

    max_unavailable: AtLeastOne = 1
    """How many proxies may be down at a time."""
    maintenance: bool = False
    """Lets node drains evict proxies with node-local volumes; their sessions wait until the node is uncordoned."""
    drain_timeout: Duration = 60.0
    """How long a restart waits for calls in flight."""
    retire_timeout: Duration = 3600.0
    """How long scaling down waits for the sessions of a proxy to end."""


class EngineSourceSpec(SpecModel):
    """Engines that somebody else runs: found by label in the namespace, or named by address."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("has(self.selector) != has(self.urls)", "name the engines by either selector or urls"),
            (
                "!has(self.selector) || size(self.selector) > 0",
                "selector is empty; it would choose every pod in the namespace",
            ),
            ("!has(self.urls) || size(self.urls) > 0", "urls is empty; name at least one engine"),
        )
    )

    selector: Labels | None = None
    """Labels of the pods that are engines."""
    port: Annotated[int, Field(ge=1, le=65535)] = 30000
    """The engines' port, for those found by label."""
    urls: Annotated[list[Address], Field(max_length=1000), EACH_ONCE] | None = None
    """Addresses of SGLang servers."""

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
    """The SGLang gateway that distributes generation over the engines."""

    replicas: Annotated[int, Field(ge=1, le=100)] | None = None
    """Number of gateways; unless set, two, so that the loss of one is no outage, and one with `policy: manual`. A local
    fleet has one."""
    policy: Literal["consistent_hashing", "manual", "round_robin", "random"] = "consistent_hashing"
    """`consistent_hashing` keeps a session on one engine, by its routing key, whichever gateway it comes through;
    `manual` does with one gateway. With policies that are not here the gateway would read requests, rewrite them and
    lose fields."""
    engines: EngineSourceSpec | None = None
    """Engines that are already running; not together with `engine`."""
    api_key_secret: ObjectName | None = None
    """The Secret (key `api-key`) with the key that engines require."""
    node_selector: Labels = Field(default_factory=dict)
    """Labels of the nodes that gateways run on."""
    tolerations: list[KubernetesObject] = Field(default_factory=list)
    """Taints that gateways tolerate."""
    resources: ResourcesSpec = ResourcesSpec()
    pod_template: KubernetesObject = Field(default_factory=dict)
    """Merged over the generated pod by Kubernetes' merge keys."""

    @property
    def replicas_on_a_cluster(self) -> int:
        """Number of gateways on a cluster."""
        return self.replicas or (1 if self.policy == "manual" else 2)

    @field_validator("policy", mode="before")
    @classmethod
    def _loses_nothing(cls, policy: object) -> object:
        if isinstance(policy, str) and policy in _LOSING_POLICIES:
            raise ValueError(
                f"{policy} is refused: under it the gateway writes requests anew and loses sampling parameters that it "
                "does not know; use consistent_hashing, manual, round_robin or random"
            )
        return policy


_LOSING_POLICIES: Final = frozenset(
    ("cache_aware", "power_of_two", "least_load", "prefix_hash", "passthrough", "bucket")
)
"""Policies of smg that look at what a request says, or at more than where it may go."""


MOST_CUE_BYTES: Final = 64_000
"""Of all cues as JSON: they reach an engine as one word of its command line."""


class CuedCall(SpecModel):
    """A call of a tool."""

    name: Annotated[str, Field(min_length=1, max_length=256)]
    """The tool's."""
    arguments: KubernetesObject = Field(default_factory=dict)
    """Of any shape. `{{name}}` within their strings stands for what a tool has last called so."""


class CuedReply(SpecModel):
    """One answer of a simulated engine: reasoning, text, calls, or several of them."""

    reasoning: Annotated[str, Field(max_length=MOST_CUE_BYTES)] = ""
    """Left out where the prompt rules it out."""
    text: Annotated[str, Field(max_length=MOST_CUE_BYTES)] = ""
    """What is said beside the calls."""
    calls: Annotated[list[CuedCall], Field(max_length=100)] = Field(default_factory=list)
    """Of tools, one after the other."""


class Cue(SpecModel):
    """Replies to a text in a message of the user."""

    cue: Annotated[str, Field(min_length=1, max_length=4096)]
    """What the message holds, to the letter."""
    replies: Annotated[list[CuedReply], Field(max_length=1000)]
    """The first answers the cue, the second comes after that answer, and so on; then words, without calls."""


class SimulatedSpec(SpecModel):
    """What a simulated engine does; it answers like SGLang, from a seed, without a GPU."""

    latency: Duration = 0.05
    """Seconds before the first token of each request."""
    token_latency: Duration = 0.001
    """Seconds for each further token."""
    noncanonical: Annotated[float, Field(ge=0, le=1)] = 0.3
    """The share of tokens with other ids than the tokenizer would choose; the text is the same."""
    seed: Count = 0
    """The same seed gives the same replies."""
    cues: Annotated[list[Cue], Field(max_length=1000)] = Field(default_factory=list)
    """The replies to prompts with these texts; with any, all other prompts get words and no calls."""

    @field_validator("cues")
    @classmethod
    def _fit_into_a_command_line(cls, cues: list[Cue]) -> list[Cue]:
        size = len(cues_json(cues))
        if size > MOST_CUE_BYTES:
            raise ValueError(f"{size} bytes of JSON are more than the {MOST_CUE_BYTES} that an engine can be told")
        return cues


def cues_json(cues: Sequence[Cue]) -> str:
    """As `rolloutfleet-engine --cues` reads them, in ASCII. Raises ValueError for a number that JSON doesn't have."""
    encoded = json.dumps([cue.model_dump() for cue in cues], allow_nan=False)
    # In a pod's arguments Kubernetes would expand `$(NAME)` and `$$`.
    return encoded.replace("$", "\\u0024")


class EngineSpec(SpecModel):
    """Engines that the fleet runs itself: SGLang on a cluster, simulated engines in a local fleet."""

    replicas: Annotated[int, Field(ge=1, le=1000)] = 1
    """How many engines."""
    gpus: Annotated[int, Field(ge=0, le=64)] = 1
    """GPUs of one engine; a simulated one uses none."""
    args: Annotated[list[str], Field(max_length=200)] = Field(default_factory=list)
    """Further arguments of SGLang; a simulated engine takes none of them."""
    simulated: SimulatedSpec = SimulatedSpec()
    """How simulated engines behave: those of a local fleet, and on a cluster those of `model: simulated`."""
    pod_template: KubernetesObject = Field(default_factory=dict)
    """Merged over the generated pod by Kubernetes' merge keys."""


class RotateSpec(SpecModel):
    """Change the id to get a new admin key; the old one stays valid for `overlap`."""

    id: Name
    """Any name; a new one creates a new key."""


class AuthSpec(SpecModel):
    """The admin key."""

    secret: ObjectName | None = None
    """Your own Secret with the admin key; by default one is generated."""
    rotate: RotateSpec | None = None
    overlap: Duration = 3600.0
    """How long the old key stays valid."""


class EndpointSpec(SpecModel):
    """The address of the fleet for agents."""

    public_url: Annotated[Address | None, Field(alias="publicURL")] = None
    """The address that sessions are given; by default the Service's."""
    direct: bool = False
    """Give sessions their owner's own address in place of the Service's. It saves what passing a call on
    costs, and agents meet an error when that proxy's pod is replaced."""
    ingress: KubernetesObject | None = None
    """An Ingress to create: its class, host, annotations and TLS."""


class RestartSpec(SpecModel):
    """Change the id to request a rolling restart."""

    id: Name
    """Any name; a new one requests another restart."""


class FleetSpec(SpecModel):
    """The desired state."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                "has(self.engine) || has(self.gateway.engines)",
                "no engines: give gateway.engines.selector or gateway.engines.urls for engines that run already, or "
                "engine for engines of the fleet's own",
            ),
            (
                "!(has(self.engine) && has(self.gateway.engines))",
                "gateway.engines and engine are both given; keep one source of engines",
            ),
            (
                "!('memory' in self.proxies.resources.limits) || "
                f"{cel_bytes('self.memory.rssBudget')}.isLessThan("
                f"{cel_bytes(_LIMIT_OF_MEMORY)})",
                "memory.rssBudget must be below proxies.resources.limits.memory, or the kernel kills the proxy first",
            ),
        )
    )

    model: ModelName
    """What the engines serve; it also names tokenizer and chat format. A name on the hub, a directory,
    or `simulated` for the small model that ships with the simulated engine."""
    models: ModelsSpec = ModelsSpec()
    compatibility: CompatibilitySpec = CompatibilitySpec()
    weights: WeightsSpec = WeightsSpec()
    tokenizer: TokenizerSpec = TokenizerSpec()
    suspend: bool = False
    """Whether to remove all pods, free the GPUs and keep the data."""
    image: str | None = None
    """The image of the proxies; by default that of the operator's release."""
    image_pull_secrets: list[KubernetesObject] = Field(default_factory=list)
    """Secrets for images that need a login."""
    proxies: ProxiesSpec = ProxiesSpec()
    sessions: SessionsSpec = SessionsSpec()
    inspect: InspectSpec = InspectSpec()
    memory: MemorySpec = MemorySpec()
    disruption: DisruptionSpec = DisruptionSpec()
    gateway: GatewaySpec = GatewaySpec()
    engine: EngineSpec | None = None
    """If set, the fleet runs its engines itself."""
    auth: AuthSpec = AuthSpec()
    endpoint: EndpointSpec = EndpointSpec()
    network_policy: KubernetesObject | None = None
    """If set, NetworkPolicies are created."""
    update_policy: Literal["Automatic", "OnRequest"] = "Automatic"
    """`OnRequest`: pods get a changed template only when a restart is requested. Under either policy engines get one
    that follows from another release, or other defaults, of the operator only then."""
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
        if len(name) > LONGEST_NAME or not re.fullmatch(_NAME, name):
            raise ValueError(
                f"{name!r} is not a valid fleet name: at most {LONGEST_NAME} of a-z, 0-9 and -, beginning with a "
                "letter and not ending with -"
            )
        return name


class RolloutFleet(SpecModel):
    """The whole resource, as `kubectl apply` and `rolloutfleet up` read it."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            (
                f"size(self.metadata.name) <= {LONGEST_NAME} && self.metadata.name.matches('{_NAME}')",
                f"a fleet's name is at most {LONGEST_NAME} of a-z, 0-9 and -, "
                "beginning with a letter and not ending with -",
            )
        )
    )

    api_version: Literal["rolloutfleet.dev/v1alpha1"] = API_VERSION
    kind: Literal["RolloutFleet"] = KIND
    metadata: Metadata
    spec: FleetSpec
    status: FleetStatus | None = None
    """Written by the operator; ignored in a file that is applied."""


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
