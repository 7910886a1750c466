"""Who may call a route, and what a handler is given."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated

from fastapi import Depends, Request

from rolloutfleet_proxy.domain.errors import ForbiddenScope, InvalidKey, MissingKey, SessionNotFound
from rolloutfleet_proxy.ids import owner_of_key
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.refusals import gone
from rolloutfleet_proxy.sessions.auth import presented_key
from rolloutfleet_proxy.sessions.sessions import Session
from rolloutfleet_proxy.sessions.tombstones import Gone


def proxy_of(request: Request) -> Proxy:
    """The proxy that this app serves."""
    proxy: Proxy = request.app.state.proxy
    return proxy


async def require_admin(request: Request) -> None:
    """Lets the admin's key pass. Raises InvalidKey, or ForbiddenScope for a session's key."""
    proxy = proxy_of(request)
    if not proxy.admin.match(presented_key(request.headers)):
        await require_known_key(proxy, request.headers)
        raise ForbiddenScope("This needs the admin key.")


async def require_known_key(proxy: Proxy, headers: Mapping[str, str]) -> None:
    """Lets pass whoever has a key that opens anything here, were it something else. Raises InvalidKey."""
    key = presented_key(headers)
    if key is None:
        raise MissingKey()
    if not proxy.admin.match(key) and await proxy.sessions.with_key(key) is None:
        raise InvalidKey()


async def require_key_of_somewhere(proxy: Proxy, headers: Mapping[str, str]) -> None:
    """Lets pass also the keys of sessions at other proxies, and of stores that are lost: only they could tell.

    Raises InvalidKey.
    """
    owner = owner_of_key(presented_key(headers) or "")
    if owner is None or owner == proxy.owner or owner.ordinal >= proxy.peers.ever:
        await require_known_key(proxy, headers)


def require_session(action: str | None = None) -> Callable[[Request, str], Awaitable[Session]]:
    """A dependency that finds the path's session for the admin, or for the session's own key.

    With an `action` the session's key is not enough: `agent_may` must name it. Raises as `find_session` and `there`.
    """

    async def find(request: Request, session_id: str) -> Session:
        return there(await find_session(request, session_id, action=action), session_id)

    return find


async def find_session(request: Request, session_id: str, *, action: str | None = None) -> Session | Gone | None:
    """What the path names, for the admin or for the session's own key; its tombstone where its rows are gone.

    While the session is being dumped, whoever would change it waits. Raises InvalidKey, ForbiddenScope.
    """
    proxy = proxy_of(request)
    if request.method != "GET":
        await proxy.seals.opened(session_id)
    key = presented_key(request.headers)
    if key is None:
        raise MissingKey()
    if proxy.admin.match(key):
        return await proxy.sessions.named(session_id)
    found = await _with_key(proxy, key, session_id)
    if action is not None and isinstance(found, Session) and action not in found.agent_may:
        raise ForbiddenScope(f"This session's key may not {action}: start it with agent_may: [{action!r}].")
    return found


async def session_with_key(proxy: Proxy, key: str | None, session_id: str | None) -> Session:
    """The session that a key opens; `session_id` is the one that the path names, if it names one.

    Raises InvalidKey, ForbiddenScope for another session's key, and what `gone` says where the session is gone.
    """
    if key is None:
        raise MissingKey()
    found = await _with_key(proxy, key, session_id)
    return there(found, found.name)


async def _with_key(proxy: Proxy, key: str, session_id: str | None) -> Session | Gone:
    found = await proxy.sessions.with_key(key)
    if found is None:
        raise InvalidKey()
    if session_id is not None and found.name != session_id:
        raise ForbiddenScope("This key belongs to another session.")
    return found


def there(found: Session | Gone | None, name: str) -> Session:
    """The session, if its rows are there. Raises SessionNotFound, or what `gone` says."""
    if found is None:
        raise SessionNotFound(f"There is no session {name[:80]!r} here.")
    if isinstance(found, Gone):
        raise gone(found)
    return found


async def _this_proxy(request: Request) -> Proxy:
    # A plain function would be run in a thread by FastAPI.
    return proxy_of(request)


ThisProxy = Annotated[Proxy, Depends(_this_proxy)]
AdminOnly = Depends(require_admin)
AnySession = Annotated[Session, Depends(require_session())]
