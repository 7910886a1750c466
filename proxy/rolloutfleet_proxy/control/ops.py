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
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheDrains, TheFigures, ThePeers, TheWeights
from rolloutfleet_proxy.control.documents import NO_KEY
from rolloutfleet_proxy.control.scopes import PROXY, Scope, everywhere, summed

router = APIRouter()


@router.get("/health", responses={200: {"model": Alive}}, openapi_extra=NO_KEY)
async def health() -> dict[str, str]:
    """Alive. Says nothing about the store or the gateway."""
    return {"status": "alive"}


@router.get("/ready", responses={200: {"model": Readiness}, 503: {"model": Readiness}}, openapi_extra=NO_KEY)
async def ready(figures: TheFigures, peers: ThePeers, weights: TheWeights, response: Response) -> dict[str, Any]:
    """This proxy alone can serve: its store is open, it has heard of its peers, it does not drain.

    The others place sessions by this.
    """
    seen = peers.itself()
    if seen.state != "ready":
        response.status_code = 503
    return {
        "ready": seen.state == "ready",
        "state": seen.state,
        "ordinal": seen.ordinal,
        "store_id": figures.sessions.store.owner.store_id,
        "sessions_open": seen.sessions_open,
        "room": seen.room,
        "proxies_ever": peers.ever,
        "weights": weights.gate.state.as_json(),
    }


@router.get("/stats", dependencies=[AdminOnly], responses={200: {"model": Stats | FleetStats}})
async def stats(request: Request, figures: TheFigures, peers: ThePeers, scope: Scope = PROXY) -> dict[str, Any]:
    """This proxy's figures, or in fleet scope each one's under `proxies`. Memory is that of a whole process tree."""
    own = await figures.stats()
    if scope == PROXY:
        return own
    answers = await everywhere(peers, request, "/stats", own)
    return {"proxies": [answers.by_ordinal[ordinal] for ordinal in sorted(answers.by_ordinal)], **answers.coverage()}


@router.get("/audit", dependencies=[AdminOnly], responses={200: {"model": Audit}})
async def sums(request: Request, figures: TheFigures, peers: ThePeers, scope: Scope = PROXY) -> dict[str, Any]:
    """Promise 5: what came and what became of it, from counters and recounted from rows; in fleet scope added up."""
    own = await figures.audit()
    if scope == PROXY:
        return {**own, "ordinals": [peers.own]}
    answers = await everywhere(peers, request, "/audit", own)
    return {**summed(list(answers.by_ordinal.values())), **answers.coverage()}


@router.get("/metrics", response_class=PlainTextResponse, openapi_extra=NO_KEY)
async def metrics(figures: TheFigures) -> Response:
    """For Prometheus. It needs no key, so it reads nothing that grows with the store."""
    return Response(await figures.prometheus(), media_type=CONTENT_TYPE_LATEST)


@router.get("/proxies", dependencies=[AdminOnly], responses={200: {"model": ProxyList}})
async def show_proxies(peers: ThePeers) -> dict[str, Any]:
    """Every proxy's ordinal, address and state, as this one saw it last."""
    return {
        "proxies": [
            {"ordinal": peer.ordinal, "url": peer.url, "state": peer.state, "sessions_open": peer.sessions_open}
            for peer in peers.table()
        ],
        "ordinals": [peers.own],
    }


@router.post("/drain", dependencies=[AdminOnly], responses={200: {"model": DrainAnswer}})
async def drain(asked: AskDrain, drains: TheDrains, peers: ThePeers) -> dict[str, Any]:
    """Take no new sessions, and in mode quiesce hold calls; then stay, restart or exit. Again, it is renewed."""
    return {**await drains.ask(asked), "ordinals": [peers.own]}


@router.delete("/drain", dependencies=[AdminOnly], responses={200: {"model": DrainUndone}})
async def undo_drain(
    drains: TheDrains, peers: ThePeers, id: Annotated[str | None, Query(max_length=128)] = None
) -> dict[str, Any]:
    """Go on: the drain of that id, or whichever is in force. Without one, nothing changes."""
    return {"undone": await drains.undo(id), "ordinals": [peers.own]}
