"""What the routes are given: leave for the caller, the services, and the few parts below them that HTTP itself asks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request

from rolloutfleet_proxy.cluster.ownership import Ownership
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.cluster.placement import Placement
from rolloutfleet_proxy.cluster.receipting import Receipting
from rolloutfleet_proxy.cluster.weights import FleetWeights
from rolloutfleet_proxy.domain.session import Gone
from rolloutfleet_proxy.http.headers import FROM_PEER, presented_key
from rolloutfleet_proxy.ids import owner_of_key
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.services.access import Access, there
from rolloutfleet_proxy.services.annotations import AnnotationService
from rolloutfleet_proxy.services.commits import Commits
from rolloutfleet_proxy.services.conversations import Conversations
from rolloutfleet_proxy.services.dumps import DumpService
from rolloutfleet_proxy.services.exports import ExportService
from rolloutfleet_proxy.services.figures import Figures
from rolloutfleet_proxy.services.models import Models
from rolloutfleet_proxy.services.receipts import Receipts
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.shards import ShardService
from rolloutfleet_proxy.services.turns import TurnService
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.telemetry.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All of one proxy's."""

    access: Access
    sessions: SessionService
    turns: TurnService
    conversations: Conversations
    commits: Commits
    annotations: AnnotationService
    receipts: Receipts
    exports: ExportService
    dumps: DumpService
    shards: ShardService
    weights: WeightService
    fleet_weights: FleetWeights
    peers: Peers
    placement: Placement
    receipting: Receipting
    ownership: Ownership
    drains: Drains
    figures: Figures
    models: Models
    metrics: Metrics

    @property
    def ordinals(self) -> list[int]:
        """What an answer covers that is this proxy's alone."""
        return [self.ownership.own.ordinal]


def services_of(request: Request) -> Services:
    """The services of the proxy that this app serves."""
    found: Services = request.app.state.services
    return found


async def _services(request: Request) -> Services:
    # A plain function would be run in a thread by FastAPI.
    return services_of(request)


TheServices = Annotated[Services, Depends(_services)]


async def require_admin(request: Request) -> None:
    """Lets the admin's key pass. Raises InvalidKey, or ForbiddenScope for a session's key."""
    await services_of(request).access.check_admin(presented_key(request.headers))


async def require_peer(request: Request) -> None:
    """Lets other proxies pass, and the admin's key. Raises as `require_admin`."""
    if not request.scope.get(FROM_PEER, False):
        await require_admin(request)


async def require_key_of_somewhere(access: Access, ownership: Ownership, key: str | None) -> None:
    """Lets pass also the keys of sessions at other proxies, and of stores that are lost: only they could tell.

    Raises InvalidKey.
    """
    owner = owner_of_key(key or "")
    if owner is None or owner == ownership.own or owner.ordinal >= ownership.peers.ever:
        await access.check_known(key)


def require_session(action: str | None = None) -> Callable[[Request, str], Awaitable[Session]]:
    """A dependency that finds the path's session for the admin, or for the session's own key.

    With an `action` the session's key is not enough: `agent_may` must name it. Raises as `Access.find` and `there`.
    """

    async def find(request: Request, session_id: str) -> Session:
        return there(await find_session(request, session_id, action=action), session_id)

    return find


async def find_session(request: Request, session_id: str, *, action: str | None = None) -> Session | Gone | None:
    """As `Access.find`, for whoever makes this request."""
    return await services_of(request).access.find(
        presented_key(request.headers), session_id, changes=request.method != "GET", action=action
    )


async def session_of_key(request: Request) -> Session:
    """The session that this request's key opens. Raises as `Access.session`."""
    return await services_of(request).access.session(presented_key(request.headers))


AdminOnly = Depends(require_admin)
PeersOnly = Depends(require_peer)
AnySession = Annotated[Session, Depends(require_session())]
SessionOfKey = Annotated[Session, Depends(session_of_key)]
