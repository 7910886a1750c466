"""Sessions of other owners that were imported here: their ids lead elsewhere, so calls by name must look here first.

Only owners are remembered, and only where there are any does a call cost a look into the store.
"""

from collections.abc import Iterable
from typing import Self

from rolloutfleet_proxy.ids import GROUP, SESSION, Owner, owner_of_name
from rolloutfleet_proxy.store.imports import load_owners, names_here, save_owners
from rolloutfleet_proxy.store.store import Reader
from rolloutfleet_proxy.store.transaction import Transaction


class Adopted:
    """Owners other than this proxy whose sessions may be here."""

    def __init__(self, reader: Reader, own: Owner, owners: Iterable[Owner] = ()) -> None:
        self._reader = reader
        self._own = own
        self._owners = set(owners)

    @classmethod
    async def load(cls, reader: Reader, own: Owner) -> Self:
        return cls(reader, own, await reader.run(load_owners))

    def note(self, transaction: Transaction, session_ids: Iterable[str]) -> None:
        """Remember whose these imported sessions are."""
        found = {owner_of_name(name, kind=SESSION) for name in session_ids}
        self._owners |= {owner for owner in found if owner is not None and owner != self._own}
        save_owners(transaction, self._owners)

    async def holds(self, session: str) -> bool:
        """Whether a session of another owner is here, or left its tombstone here."""
        return session in await self.among([session])

    async def among(self, sessions: Iterable[str], *, group: str | None = None) -> set[str]:
        """Those of the names of sessions, and of a group, that are of other owners and lead here all the same."""
        if not self._owners:
            return set()
        names = [name for name in sessions if owner_of_name(name, kind=SESSION) in self._owners]
        groups = [group] if group is not None and owner_of_name(group, kind=GROUP) in self._owners else []
        if not names and not groups:
            return set()
        return await self._reader.run(lambda connection: names_here(connection, names, groups))
