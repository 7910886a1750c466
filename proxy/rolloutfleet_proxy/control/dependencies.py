"""What the routes are given: leave for the caller, the services, and the few parts below them that HTTP itself asks."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from rolloutfleet_proxy.cluster.ownership import Ownership
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.cluster.placement import Placement
from rolloutfleet_proxy.cluster.weights import FleetWeights
from rolloutfleet_proxy.domain.session import Gone
from rolloutfleet_proxy.http.headers import presented_key
from rolloutfleet_proxy.ids import Owner, owner_of_key
from rolloutfleet_proxy.process.drain import Drains
from rolloutfleet_proxy.services.access import Access, there
from rolloutfleet_proxy.services.dumps import DumpService
from rolloutfleet_proxy.services.exports import ExportService
from rolloutfleet_proxy.services.figures import Figures
from rolloutfleet_proxy.services.models import Models
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.shards import ShardService
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.sessions.sessions import Session
from rolloutfleet_proxy.telemetry.metrics import Metrics

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """All of one proxy's. A route names those that it needs."""

    access: Access
    sessions: SessionService
    exports: ExportService
    dumps: DumpService
    shards: ShardService
    weights: WeightService
    fleet_weights: FleetWeights
    peers: Peers
    placement: Placement
    ownership: Ownership
    drains: Drains
    figures: Figures
    models: Models
    metrics: Metrics


def services_of(request: Request) -> Services:
    """The services of the proxy that this app serves."""
    found: Services = request.app.state.services
    return found


def _given(choose: Callable[[Services], T]) -> Callable[[Request], Awaitable[T]]:
    # A plain function would be run in a thread by FastAPI.
    async def given(request: Request) -> T:
        return choose(services_of(request))

    return given


TheAccess = Annotated[Access, Depends(_given(lambda services: services.access))]
TheSessions = Annotated[SessionService, Depends(_given(lambda services: services.sessions))]
TheExports = Annotated[ExportService, Depends(_given(lambda services: services.exports))]
TheDumps = Annotated[DumpService, Depends(_given(lambda services: services.dumps))]
TheWeights = Annotated[WeightService, Depends(_given(lambda services: services.weights))]
TheFleetWeights = Annotated[FleetWeights, Depends(_given(lambda services: services.fleet_weights))]
ThePeers = Annotated[Peers, Depends(_given(lambda services: services.peers))]
TheOwnership = Annotated[Ownership, Depends(_given(lambda services: services.ownership))]
TheShards = Annotated[ShardService, Depends(_given(lambda services: services.shards))]
TheDrains = Annotated[Drains, Depends(_given(lambda services: services.drains))]
TheFigures = Annotated[Figures, Depends(_given(lambda services: services.figures))]
TheModels = Annotated[Models, Depends(_given(lambda services: services.models))]


async def require_admin(request: Request) -> None:
    """Lets the admin's key pass. Raises InvalidKey, or ForbiddenScope for a session's key."""
    await services_of(request).access.check_admin(presented_key(request.headers))


async def require_key_of_somewhere(access: Access, peers: Peers, own: Owner, key: str | None) -> None:
    """Lets pass also the keys of sessions at other proxies, and of stores that are lost: only they could tell.

    Raises InvalidKey.
    """
    owner = owner_of_key(key or "")
    if owner is None or owner == own or owner.ordinal >= peers.ever:
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


AdminOnly = Depends(require_admin)
AnySession = Annotated[Session, Depends(require_session())]
