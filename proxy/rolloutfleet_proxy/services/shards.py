"""Tensors kept for others: room for one that comes, and those that are there."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass

from rolloutfleet.tensors import RemoteTensor
from rolloutfleet.wire import DEFAULT_SHARD_TTL
from rolloutfleet_proxy.domain.errors import InvalidRequest, NoRoom
from rolloutfleet_proxy.ids import Owner
from rolloutfleet_proxy.sessions.admission import Admission
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.shards.files import NotOneTensor
from rolloutfleet_proxy.shards.shelf import Shards


@dataclass(frozen=True, slots=True)
class Stored:
    """A shard that is kept."""

    reference: RemoteTensor
    nbytes: int
    expires_in: float | None
    fresh: bool
    """It was not here before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardService:
    """The shards of this proxy."""

    shelf: Shards
    admission: Admission
    owner: Owner
    settings: SettingsInForce

    async def put(
        self, name: str, pieces: AsyncIterator[bytes], *, declared: int, session: str | None, ttl: float | None
    ) -> Stored:
        """Keep the one tensor of a body of so many bytes, for a session, for a time, or until the first of both ends.

        Raises NoRoom before any of it is read, InvalidRequest for what is not one tensor, and as `Shards.put`.
        """
        if ttl is None and session is None:
            ttl = DEFAULT_SHARD_TTL
        with self.admission.bytes_on_their_way(declared) as fits:
            if not fits:
                message = "There is no room for this shard now: delete some, or wait until others expire."
                raise NoRoom(message)
            try:
                form, fresh = await self.shelf.put(name, pieces, session=session, ttl=ttl)
            except NotOneTensor as wrong:
                raise InvalidRequest(f"The body is not one tensor as safetensors: {wrong}.") from None
        # Its id says nothing of its owner, so a public address could not find it again.
        kept_at = self.settings.current.address_of(self.owner.ordinal)
        reference = RemoteTensor(name, kept_at, form.shape, form.dtype)
        return Stored(reference, form.nbytes, ttl, fresh)

    async def delete(self, names: Sequence[str]) -> dict[str, int]:
        """Let go of those that are there; how many they were, and their bytes."""
        deleted, nbytes = await self.shelf.delete(names)
        return {"deleted": deleted, "bytes": nbytes}
