"""Who is asking, and what may they do: the admin by its keys, a session's agent by the session's own. Promise 10."""

from dataclasses import dataclass

from rolloutfleet_proxy.domain.errors import ForbiddenScope, InvalidKey, MissingKey, SessionNotFound
from rolloutfleet_proxy.domain.session import OPEN, Gone
from rolloutfleet_proxy.lifecycle.sealing import Seals
from rolloutfleet_proxy.refusals import ended, gone
from rolloutfleet_proxy.sessions.auth import AdminKeys
from rolloutfleet_proxy.sessions.registry import Session, SessionRegistry


@dataclass(eq=False, slots=True, kw_only=True)
class Access:
    """Judges keys."""

    admin: AdminKeys
    registry: SessionRegistry
    seals: Seals

    def use_admin_keys(self, keys: AdminKeys) -> None:
        """These are the admin's from now on."""
        self.admin = keys

    def is_admin(self, key: str | None) -> bool:
        return self.admin.match(key)

    def is_peer(self, voucher: str, key: str | None) -> bool:
        """Whether a call comes from another proxy of the fleet, or from an admin."""
        return self.admin.vouched(voucher) or self.is_admin(key)

    async def check_admin(self, key: str | None) -> None:
        """Lets the admin's key pass. Raises MissingKey, InvalidKey, and ForbiddenScope for a session's key."""
        if not self.is_admin(key):
            await self.check_known(key)
            raise ForbiddenScope("This needs the admin key.")

    async def check_known(self, key: str | None) -> None:
        """Lets pass whoever has a key that opens anything here, were it something else.

        Raises MissingKey, InvalidKey.
        """
        if not self.is_admin(key):
            await self._with_key(key)

    async def session(self, key: str | None, name: str | None = None) -> Session:
        """The session that a key opens; `name` is what the path names, if it names one.

        Raises MissingKey, InvalidKey, ForbiddenScope for another session's key, and what `gone` says where it is gone.
        """
        found = await self._with_key(key, name)
        return there(found, found.name)

    async def current(self, session: Session, key: str | None) -> Session:
        """The session that a key opened a while ago, as memory holds it once no sweep does. Raises as `session`."""
        while session.name in self.seals or not self.registry.holds(session):
            await self.seals.opened(session.name)
            session = await self.session(key, session.name)
        return session

    async def still_open(self, session: Session, key: str | None) -> Session:
        """The same, for a call that needs it open. Raises what `ended` says where it is over, and as `session`."""
        session = await self.current(session, key)
        if session.state != OPEN:
            raise ended(session)
        return session

    async def find(
        self, key: str | None, name: str, *, changes: bool, action: str | None = None
    ) -> Session | Gone | None:
        """What is called so, for the admin or for the session's own key; its tombstone where its rows are gone.

        With an `action` the session's key is not enough: `agent_may` must name it. Whoever `changes` a session that is
        being dumped waits. Raises MissingKey, InvalidKey, ForbiddenScope.
        """
        if changes:
            await self.seals.opened(name)
        if self.is_admin(key):
            return await self.registry.named(name)
        found = await self._with_key(key, name)
        if action is not None and isinstance(found, Session) and action not in found.agent_may:
            raise ForbiddenScope(f"This session's key may not {action}: start it with agent_may: [{action!r}].")
        return found

    async def _with_key(self, key: str | None, name: str | None = None) -> Session | Gone:
        if key is None:
            raise MissingKey()
        found = await self.registry.with_key(key)
        if found is None:
            raise InvalidKey()
        if name is not None and found.name != name:
            raise ForbiddenScope("This key belongs to another session.")
        return found


def there(found: Session | Gone | None, name: str) -> Session:
    """The session, if its rows are there. Raises SessionNotFound, or what `gone` says."""
    if found is None:
        raise SessionNotFound(f"There is no session {name[:80]!r} here.")
    if isinstance(found, Gone):
        raise gone(found)
    return found
