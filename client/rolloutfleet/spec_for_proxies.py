"""The parts of the resource that proxies are told too: their settings use them, and so does `spec.py`.

A module of its own, because a proxy takes time at its start for every model that it imports.
"""

import posixpath
from typing import Annotated, Final, Literal, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from rolloutfleet.sampling import SamplingFields
from rolloutfleet.spec_fields import (
    EACH_ONCE,
    AtLeastOne,
    KubernetesObject,
    ModelName,
    ObjectName,
    PositiveDuration,
    PositiveQuantity,
    SpecModel,
    cel,
)
from rolloutfleet.units import Duration

DUMP_ROOT: Final = "/dumps"
STORE_SHARE_OF_STORAGE: Final = 0.8


class TokenizerSpec(SpecModel):
    """Where tokenizer and chat format come from; by default from the model itself."""

    model_config = ConfigDict(
        json_schema_extra=cel(("!(has(self.path) && has(self.hub))", "path and hub are both given; keep one"))
    )

    path: str | None = None
    """A directory with the tokenizer's files: mounted into the pod, or on this machine."""
    hub: str | None = None
    """A name on the Hugging Face hub; fetched once to the proxy's volume."""
    token_secret: ObjectName | None = None
    """The Secret (key `token`) for a gated repository on the hub."""
    renderer: str | None = None
    """The chat format's name in the `renderers` library; by default it follows from the model."""
    thinking_retention: Literal["all", "tool_cycle", "template"] = "all"
    """Which earlier reasoning stays in the prompt when a user message follows. `all` keeps every token and
    so extends the parent turn; `template` does what the model's template does, and starts a new branch."""
    special_tokens_in_text: Literal["text", "token"] = "text"
    """Control tokens (`<|im_end|>`, `<think>`) that tools, users or system messages spell. `text`: they
    are read as the letters they are, and the turn says how many (`special_tokens_in_text`). `token`: as the control
    token, so that whoever writes such a text writes the prompt's structure."""

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if self.path is not None and self.hub is not None:
            raise ValueError("path and hub are both given; keep one")
        return self


class DumpKeepSpec(SpecModel):
    """How much a dump folder keeps; without a bound, everything."""

    age: PositiveDuration | None = None
    """Dumps older than this are removed."""
    bytes: PositiveQuantity | None = None
    """Above this total size, the oldest dumps are removed."""


class DumpSpec(SpecModel):
    """Where the turns of stale sessions are written."""

    path: Annotated[
        str,
        Field(
            max_length=4096,
            json_schema_extra=cel(
                (
                    "self == '' || self.matches('^/dumps(/[^/]+)*/?$') && !self.matches('/[.][.]?(/|$)')",
                    "must be /dumps or a folder below it, without .. in it",
                )
            ),
        ),
    ] = DUMP_ROOT
    """`/dumps` or a folder below it; empty for no dumps. A local fleet uses `dumps` in its state folder."""
    volume: KubernetesObject | None = None
    """Any pod volume source, mounted at /dumps; by default the proxy's own claim."""
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
    """Open sessions of one proxy; more get 429."""
    bytes: PositiveQuantity | None = None
    """Bytes that a store and its shards may take; by default 80 % of the storage."""
    turns: AtLeastOne | None = None
    """Turns of one session; more get 400."""
    tokens: Annotated[int, Field(ge=1)] | None = None
    """Prompt and output tokens of one session, each counted once; more get 400."""


class SamplingValuesSpec(SamplingFields, SpecModel):
    """Sampling parameters; unset: nothing is said of it."""

    model_config = ConfigDict(
        json_schema_extra=cel(
            ("!has(self.topP) || self.topP > 0.0", "topP must be above 0"),
            ("!has(self.topK) || self.topK != 0", "topK must be -1 (off) or at least 1"),
        )
    )


class SamplingSpec(SpecModel):
    """How turns are sampled. What a session is started with comes before this, parameter by parameter."""

    defaults: SamplingValuesSpec = SamplingValuesSpec()
    """Values that count where the agent's request says nothing."""
    overrides: SamplingValuesSpec = SamplingValuesSpec()
    """Values that count whatever the agent's request says."""


class SessionsSpec(SpecModel):
    """How long sessions live, how much they may hold, and how their turns are sampled."""

    stale_after: PositiveDuration = 3600.0
    """A session without a call for this long is stale: it is dumped and freed."""
    unclaimed_after: PositiveDuration = 86400.0
    """A closed session is dumped and freed if no trainer takes its trajectories for this long."""
    cleanup_interval: PositiveDuration = 60.0
    """How often a proxy looks for stale sessions."""
    retry_grace: Duration = 10.0
    """How long a generation continues for a client that disconnected and may retry; 0: it is aborted at once."""
    max_hold: PositiveDuration = 300.0
    """The longest wait of a call in a pause, or for a gateway, an engine or its own proxy; then it gets 503."""
    dump: DumpSpec = DumpSpec()
    limits: LimitsSpec = LimitsSpec()
    sampling: SamplingSpec = SamplingSpec()


class MemorySpec(SpecModel):
    """When a proxy is restarted for its resident memory."""

    rss_budget: PositiveQuantity = 4 * 2**30
    """Resident memory of all processes of a proxy above which a restart is due."""
    samples: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many samples in a row over the budget make a restart due."""
    interval: PositiveDuration = 15.0
    """How often memory is sampled."""
    cooldown: Duration = 600.0
    """The shortest time between two restarts of one proxy."""
    restart: Literal["Process", "Container", "Pod"] = "Process"
    """What is restarted: the process within the pod (calls wait), the container, or the pod."""


class WeightsSpec(SpecModel):
    """What the proxies do about changes of the weights."""

    cache: Literal["byVersion", "shared"] = "byVersion"
    """`byVersion`: a prompt meets no prefix cache that other weights computed. `shared`: after an update that
    leaves the engines' caches as they are, it may; such turns are marked `mixed_cache`."""


class ModelsSpec(SpecModel):
    """The names by which agents may call the model."""

    names: Annotated[list[ModelName], Field(max_length=1000), EACH_ONCE] | None = None
    """Names accepted besides `model`; any other is 404. Unset: every name is accepted, and repeated in the answer."""

    @field_validator("names")
    @classmethod
    def _each_once(cls, names: list[str] | None) -> list[str] | None:
        if names is not None and len(set(names)) != len(names):
            raise ValueError("a name is listed twice")
        return names


class CompatibilitySpec(SpecModel):
    """How agents' requests are read."""

    requests: Literal["lenient", "strict"] = "lenient"
    """`lenient`: a field that can be ignored without breaking a promise is accepted, and named in
    `x-rolloutfleet-ignored`. `strict`: it is a 400."""
    images: Literal["refuse", "placeholder"] = "refuse"
    """`refuse`: an image is a 400. `placeholder`: the prompt has `[image omitted]` in its place, and the turn says how
    many (`placeholders`)."""


class KeepSpec(SpecModel):
    """Copies of sessions that were trained, to be looked at later."""

    fraction: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The share of sessions of which a copy is kept once they are acknowledged, drawn by their ids; 0: none."""
    max_bytes: PositiveQuantity = 2**30
    """Above this total size at one proxy, the oldest copies are removed."""


class InspectSpec(SpecModel):
    """What there is to look at."""

    keep: KeepSpec = KeepSpec()
