"""Running a fleet: its proxies, what each says of itself (health, readiness, figures, sums, metrics), drains."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import CONTENT_TYPE_LATEST

from rolloutfleet.wire import (
    Alive,
    AskDrain,
    Audit,
    DrainAnswer,
    DrainUndone,
    FleetStats,
    ProxyList,
    Readiness,
    Stats,
)
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheServices
from rolloutfleet_proxy.control.documents import NO_KEY
from rolloutfleet_proxy.control.scopes import LOOKING_ON, PROXY, Scope, everywhere, summed

router = APIRouter()


@router.get("/health", responses={200: {"model": Alive}}, openapi_extra=NO_KEY)
async def health() -> dict[str, str]:
    """Alive. Says nothing about the store or the gateway."""
    return {"status": "alive"}


@router.get("/ready", responses={200: {"model": Readiness}, 503: {"model": Readiness}}, openapi_extra=NO_KEY)
async def ready(services: TheServices, response: Response) -> dict[str, Any]:
    """This proxy alone can serve: its store is open, it has heard of its peers, it does not drain.

    The others place sessions by this.
    """
    seen = services.peers.itself()
    if seen.state != "ready":
        response.status_code = 503
    return {
        "ready": seen.state == "ready",
        "state": seen.state,
        "problem": services.figures.problem,
        "ordinal": seen.ordinal,
        "store_id": services.ownership.own.store_id,
        "sessions_open": seen.sessions_open,
        "room": seen.room,
        "proxies_ever": services.peers.ever,
        "weights": services.weights.gate.state.as_json(),
    }


@router.get("/stats", dependencies=[AdminOnly], responses={200: {"model": Stats | FleetStats}})
async def stats(request: Request, services: TheServices, scope: Scope = PROXY) -> dict[str, Any]:
    """This proxy's figures, or in fleet scope each one's under `proxies`. Memory is that of a whole process tree."""
    own = await services.figures.stats()
    if scope == PROXY:
        return own
    answers = await everywhere(services.peers, request, "/stats", own, silent=LOOKING_ON)
    return {"proxies": [answers.by_ordinal[ordinal] for ordinal in sorted(answers.by_ordinal)], **answers.coverage()}


@router.get("/audit", dependencies=[AdminOnly], responses={200: {"model": Audit}})
async def sums(request: Request, services: TheServices, scope: Scope = PROXY) -> dict[str, Any]:
    """Promise 5: what came and what became of it, from counters and recounted from rows; in fleet scope added up."""
    own = await services.figures.audit()
    if scope == PROXY:
        return {**own, "ordinals": services.ordinals}
    answers = await everywhere(services.peers, request, "/audit", own)
    return {**summed(list(answers.by_ordinal.values())), **answers.coverage()}


@router.get("/metrics", response_class=PlainTextResponse, openapi_extra=NO_KEY)
async def metrics(services: TheServices) -> Response:
    """For Prometheus. It needs no key, so it reads nothing that grows with the store."""
    return Response(await services.figures.prometheus(), media_type=CONTENT_TYPE_LATEST)


@router.get("/proxies", dependencies=[AdminOnly], responses={200: {"model": ProxyList}})
async def show_proxies(services: TheServices) -> dict[str, Any]:
    """Every proxy's ordinal, address and state, as this one saw it last."""
    return {
        "proxies": [
            {"ordinal": peer.ordinal, "url": peer.url, "state": peer.state, "sessions_open": peer.sessions_open}
            for peer in services.peers.table()
        ],
        "ordinals": services.ordinals,
    }


@router.post("/drain", dependencies=[AdminOnly], responses={200: {"model": DrainAnswer}})
async def drain(asked: AskDrain, services: TheServices) -> dict[str, Any]:
    """Take no new sessions, and in mode quiesce hold calls; then stay, restart or exit. Again, it is renewed."""
    return {**await services.drains.ask(asked), "ordinals": services.ordinals}


@router.delete("/drain", dependencies=[AdminOnly], responses={200: {"model": DrainUndone}})
async def undo_drain(services: TheServices, id: Annotated[str | None, Query(max_length=128)] = None) -> dict[str, Any]:
    """Go on: the drain of that id, or whichever is in force. Without one, nothing changes."""
    return {"undone": await services.drains.undo(id), "ordinals": services.ordinals}
