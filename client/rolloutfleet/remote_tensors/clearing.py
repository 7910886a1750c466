"""Giving shards back, everywhere they are: what a clear has done, and what it had to say.

Three layers hold a shard, and each is emptied in its turn: the storage of its owner, the buffer of the process that
clears, and the buffers of all other ranks. The owner comes first: a rank that fetches between its own clear and the
owner's would keep what nobody clears again.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from rolloutfleet.tensors import RemoteTensor

LOG: Final = logging.getLogger("rolloutfleet.remote_tensors")
CONTROLLER: Final = "controller"


class Role(Protocol):
    """The ranks of one role (actor, critic, reference), over whatever transport the trainer has.

    Each rank runs `rolloutfleet.remote_tensors.clear_fetch_buffer(ids)` and `fetch_buffer_stats()`.
    """

    def clear_fetch_buffer(self, ids: list[str], /) -> object: ...

    def fetch_buffer_stats(self) -> Iterable[Mapping[str, int]]:
        """One of each rank."""


@dataclass(frozen=True, slots=True)
class DeleteReport:
    """What the owners answered."""

    shards: int = 0
    """That were there till then."""
    nbytes: int = 0
    undeleted: tuple[RemoteTensor, ...] = ()
    """Their owner has not acknowledged that they are gone. They are asked for again at the next clear."""
    failures: Mapping[str, str] = field(default_factory=dict)
    """Why, by owner."""


@dataclass(frozen=True, slots=True)
class Cleared:
    """What a clear has done."""

    ids: tuple[str, ...] = ()
    """All that were named, each once."""
    deleted: DeleteReport = DeleteReport()
    failed_roles: Mapping[str, str] = field(default_factory=dict)
    """Roles whose ranks could not be told, and why."""
    staying: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """`{"entries", "bytes"}` of every buffer that is not empty afterwards, by role and rank."""

    @property
    def complete(self) -> bool:
        """Whether owners and roles have all done what they were asked."""
        return not self.deleted.undeleted and not self.failed_roles


def drain(roles: Mapping[str, Role], ids: Sequence[str]) -> dict[str, str]:
    """Tell every role to forget these shards, whatever the others answer. Why those failed that did."""
    failed: dict[str, str] = {}
    for name, role in roles.items():
        try:
            role.clear_fetch_buffer(list(ids))
        except Exception as error:
            failed[name] = f"{type(error).__name__}: {error}"
            LOG.warning("the ranks of %s were not told to clear %d shards: %s", name, len(ids), failed[name])
    return failed


def buffers_of(roles: Mapping[str, Role]) -> dict[str, Mapping[str, int]]:
    """The buffers of every rank, by role and rank. A role that can't be asked is left out, with a warning."""
    found: dict[str, Mapping[str, int]] = {}
    for name, role in roles.items():
        try:
            found |= {f"{name}[{rank}]": dict(stats) for rank, stats in enumerate(role.fetch_buffer_stats())}
        except Exception as error:
            LOG.warning("the fetch buffers of %s could not be looked at: %s: %s", name, type(error).__name__, error)
    return found


def staying(buffers: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Those that are not empty, with a warning that names them."""
    found = {name: stats for name, stats in buffers.items() if stats.get("entries")}
    if found:
        named = ", ".join(f"{name}: {stats['entries']} ({_mib(stats)})" for name, stats in list(found.items())[:8])
        more = f" and {len(found) - 8} more" if len(found) > 8 else ""
        LOG.warning("shards stay in fetch buffers after a clear: %s%s", named, more)
    return found


def _mib(stats: Mapping[str, Any]) -> str:
    return f"{stats.get('bytes', 0) / 2**20:.1f} MiB"
