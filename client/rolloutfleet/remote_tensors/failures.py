"""What goes wrong with shards, as a trainer sees it: a part of the tree in `rolloutfleet.fleet.exceptions`.

FleetError
├── ShardsMissing      the owner answers, and does not keep them
├── ShardMismatch      what it keeps is not what the reference says
├── OwnerUnavailable   no good answer within the time
├── Refused            an answer that a retry can't change
└── UnknownOwner       the reference names an address that is no proxy of this fleet
"""

from collections.abc import Sequence

from rolloutfleet.fleet.exceptions import FleetError

RemoteTensorError = FleetError
"""The base of all of them."""


class ShardsMissing(FleetError):
    """These shards are not kept (any more): deleted, or their time was up."""

    def __init__(self, owner: str, ids: Sequence[str]) -> None:
        some = ", ".join(ids[:5]) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        super().__init__(f"{owner} does not keep {some}: deleted, or past its time to live")
        self.owner = owner
        self.ids = tuple(ids)


class ShardMismatch(FleetError):
    """A shard has another type or shape than its reference."""


class OwnerUnavailable(FleetError):
    """A proxy gave no good answer for as long as was waited."""


class UnknownOwner(FleetError):
    """The admin key goes to the fleet's own proxies alone, whatever a reference says."""

    def __init__(self, owner: str, known: Sequence[str]) -> None:
        super().__init__(f"{owner!r} is no proxy of this fleet, which has {', '.join(known) or 'none'}")
