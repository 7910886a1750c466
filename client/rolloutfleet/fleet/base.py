"""What `Fleet` and `AsyncFleet` share: the ways to find a fleet, its options, and what was last heard of it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NoReturn, Self, TypedDict, Unpack

from pydantic import JsonValue

from rolloutfleet.fleet.admission import Counts, StalenessFilter, TooOld
from rolloutfleet.fleet.arguments import Named
from rolloutfleet.fleet.prefetching import OnExit
from rolloutfleet.fleet.proxies import Proxies
from rolloutfleet.fleet.sessions import OnError, SamplingOption
from rolloutfleet.fleet.weights import FleetWeights
from rolloutfleet.fleet.whereabouts import EngineAddress, Whereabouts
from rolloutfleet.staleness import StalenessManager
from rolloutfleet.wire import AgentMay, Credit, ExportStyle, Included, LineageKind, LineageUse, Outcome

if TYPE_CHECKING:
    from rolloutfleet.remote_tensors import RemoteTensors

Framework = Literal["torch", "numpy"]


class Options(TypedDict, total=False):
    """What `Fleet` and `AsyncFleet` take by name, however the fleet is found."""

    staleness: StalenessManager | None
    """The budget that sessions are started under. Without one they are started at once, and nothing is too old."""
    too_old: TooOld
    """What becomes of a trajectory whose oldest token is more than `max_staleness` versions old when it is exported:
    `drop` (the default) acknowledges it without handing it out, `keep` hands it out. Both are counted."""
    patience: float
    """Seconds that a call is made again for, while proxies don't answer or ask to wait (60)."""
    lost_after: float
    """Seconds after which the sessions of a proxy that does not answer give their places back (60)."""
    progress: bool | None
    """Whether long waits show a line on the error output; by default where that is a terminal."""


class SessionTerms(TypedDict, total=False):
    """The terms of a session, by name."""

    metadata: Mapping[str, JsonValue] | None
    stale_after: float | None
    await_reward: float | None
    train: bool
    max_turns: int | None
    max_tokens: int | None
    sampling: SamplingOption
    agent_may: Iterable[AgentMay]


class SessionOptions(SessionTerms, total=False):
    """The options of a start, by name."""

    replaces: Named | None
    on_error: OnError
    timeout: float | None


class ExportTerms(TypedDict, total=False):
    """Options of a lease, by name: the trajectories, its time, the form of rows."""

    session_ids: Iterable[Named] | None
    group_id: str | None
    style: ExportStyle
    discount: float
    lineages: Mapping[LineageKind, LineageUse] | None
    credit: Credit
    train: Iterable[Outcome]
    include: Iterable[Included]
    lease_seconds: float


class ExportArguments(ExportTerms, total=False):
    """The options of an export, by name."""

    wait: bool | None
    as_: Literal["tensors", "shards"]
    page: int
    prefetch: int
    timeout: float | None
    grace: float
    on_exit: OnExit


class FleetBase(ABC):
    """Made of whereabouts; what it has heard can be read without asking any proxy."""

    whereabouts: Whereabouts
    """What another process makes its own fleet object of."""
    staleness: StalenessManager | None
    """The budget that sessions are started under."""
    _proxies: Proxies
    _weights: FleetWeights
    _filter: StalenessFilter

    @abstractmethod
    def __init__(self, where: Whereabouts, **options: Unpack[Options]) -> None: ...

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        admin_key: str | None = None,
        admin_key_file: str | Path | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """A fleet by the address of any of its proxies, or of what stands before them.

        The key is `admin_key`, else in `admin_key_file`, else in the file that ROLLOUTFLEET_ADMIN_KEY_FILE names.
        Raises BadArgument.
        """
        return cls(Whereabouts.from_url(url, admin_key=admin_key, admin_key_file=admin_key_file), **options)

    @classmethod
    def from_file(cls, path: str | Path | None = None, **options: Unpack[Options]) -> Self:
        """A local fleet by its `fleet.json`, or the folder that has it; by default the one whose `up` runs here.

        The key is in the file that `fleet.json` names. Raises BadArgument.
        """
        return cls(Whereabouts.from_file(path), **options)

    @classmethod
    def on_kubernetes(
        cls,
        name: str,
        *,
        namespace: str | None = None,
        admin_key: str | None = None,
        admin_key_file: str | Path | None = None,
        **options: Unpack[Options],
    ) -> Self:
        """A fleet by its name, from a pod of the same cluster: it answers at the Service of that name.

        The namespace is the pod's own unless given. The key is found as in `from_url`, else where a pod finds it that
        mounts the Secret `NAME-keys` at /etc/rolloutfleet/keys. The Kubernetes API is not asked. Raises BadArgument.
        """
        where = Whereabouts.on_kubernetes(name, namespace=namespace, admin_key=admin_key, admin_key_file=admin_key_file)
        return cls(where, **options)

    def __reduce__(self) -> NoReturn:
        name = type(self).__name__
        raise TypeError(
            f"{name} can't be pickled, as it belongs to its process: hand on its `whereabouts`, and make one there, "
            f"{name}(whereabouts)"
        )

    @property
    def counts(self) -> Counts:
        """What this object has seen."""
        return self._filter.counts

    @property
    def version(self) -> int:
        """The weights' version, as last heard. Raises NotHeardYet where nothing was: `weights()` asks."""
        return self._weights.version

    @property
    def run(self) -> int:
        """The weights' run, as last heard. Raises NotHeardYet where nothing was: `weights()` asks."""
        return self._weights.newest[0]

    @property
    def unreachable(self) -> dict[int, str]:
        """Proxies that did not answer when they were last asked, and why."""
        return {ordinal: outage.why for ordinal, outage in self._proxies.outages.items()}

    @property
    def owed(self) -> list[str]:
        """What proxies that don't answer have still to be told; it is said again and again in the background."""
        return self._proxies.outbox.texts

    @property
    def unheard(self) -> frozenset[str]:
        """Trajectories that were acknowledged, and whose proxies could not be told yet."""
        return self._proxies.outbox.acknowledged

    @property
    def engines(self) -> tuple[EngineAddress, ...]:
        """The engines with their key, where a local fleet's file names them; else none. Raises BadArgument."""
        return self.whereabouts.engines()

    def remote_tensors(self, *, framework: Framework = "torch") -> "RemoteTensors":
        """Tensors that the proxies keep, by reference: what an export `as_="shards"` brings (docs/remote-tensors.md).

        It waits in the calling thread, and is closed by whoever asked for it. Raises ImportError without torch.
        """
        from rolloutfleet.remote_tensors import RemoteTensors

        return RemoteTensors(self.whereabouts.proxies, self.whereabouts.admin_key, framework=framework)
