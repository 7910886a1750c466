"""The ways in which a fleet is found, and what it takes whichever it was: the same for `Fleet` and `AsyncFleet`."""

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Literal, Self, TypedDict, Unpack

from rolloutfleet.fleet.whereabouts import Whereabouts
from rolloutfleet.staleness import StalenessManager

TooOld = Literal["drop", "keep"]


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


class Found(ABC):
    """What is made of whereabouts."""

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

        The key is in `admin_key_file`, else in the file that `fleet.json` names. Raises BadArgument.
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
