"""What a proxy says of itself: health, readiness, figures, sums, metrics."""

import asyncio
import os
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy
from rolloutfleet_proxy.api.scopes import PROXY, Scope, everywhere, summed
from rolloutfleet_proxy.figures.exposition import Present, exposition
from rolloutfleet_proxy.logs import events
from rolloutfleet_proxy.memory import resident
from rolloutfleet_proxy.proxy import STORE_FOLDER, Proxy
from rolloutfleet_proxy.restarts import boots
from rolloutfleet_proxy.sessions.sessions import count_by_state
from rolloutfleet_proxy.store.audit import audit, ledger
from rolloutfleet_proxy.store.database import store_bytes

router = APIRouter()


@router.get("/health")
async def health() -> dict[str, str]:
    """Alive. Says nothing about the store or the gateway."""
    return {"status": "alive"}


@router.get("/ready")
async def ready(proxy: ThisProxy, response: Response) -> dict[str, Any]:
    """This proxy alone can serve: its store is open, it has heard of its peers, it does not drain.

    The others place sessions by this.
    """
    seen = proxy.as_peer()
    if seen.state != "ready":
        response.status_code = 503
    return {
        "ready": seen.state == "ready",
        "state": seen.state,
        "ordinal": seen.ordinal,
        "store_id": proxy.owner.store_id,
        "sessions_open": seen.sessions_open,
        "room": seen.room,
        "proxies_ever": proxy.peers.ever,
        "weights": proxy.weights.state.as_json(),
    }


@router.get("/stats", dependencies=[AdminOnly])
async def stats(request: Request, proxy: ThisProxy, scope: Scope = PROXY) -> dict[str, Any]:
    """This proxy's figures, or in fleet scope each one's under `proxies`. Memory is that of a whole process tree."""
    own = await _stats(proxy)
    if scope == PROXY:
        return own
    answers = await everywhere(proxy, request, "/stats", own)
    return {"proxies": [answers.by_ordinal[ordinal] for ordinal in sorted(answers.by_ordinal)], **answers.coverage()}


async def _stats(proxy: Proxy) -> dict[str, Any]:
    sessions, booted, taken = await asyncio.gather(
        proxy.recounting.run(count_by_state), proxy.reader.run(boots.load), asyncio.to_thread(resident.of_tree)
    )
    weights = proxy.weights
    return {
        "ordinal": proxy.owner.ordinal,
        "ordinals": [proxy.owner.ordinal],
        "store_id": proxy.owner.store_id,
        "pid": os.getpid(),
        "run": weights.run,
        "version": weights.version,
        "epoch": weights.epoch,
        "paused": weights.paused,
        "past_max_hold": weights.overdue,
        "sessions": sessions,
        "in_flight": proxy.metrics.in_flight,
        **asdict(taken),
        "caches": proxy.cache_sizes(),
        "in_flight_bytes": proxy.in_flight.nbytes,
        "most_in_flight_bytes": proxy.in_flight.most,
        "trims": proxy.trimming.figures(),
        "collections": proxy.collections.figures(),
        "drain": proxy.drains.shown(),
        "boots": booted,
        "store": {"full": await asyncio.to_thread(proxy.admission.is_full), "reserved": _is_reserved(proxy)},
        "dump": _dump(proxy),
        "settings": {
            "generation": proxy.settings.generation,
            "error": proxy.settings_error,
            "needs_restart": list(proxy.settings_waiting),
        },
        "gateway": {"loses": proxy.probing.loses, "probes": proxy.probing.requests},
        "refused": dict(proxy.metrics.refused),
        "prefix_checks": dict(proxy.metrics.prefix_checks),
        "follow_ups": dict(proxy.metrics.follow_ups),
        "branches": dict(proxy.metrics.branches),
    }


def _is_reserved(proxy: Proxy) -> bool:
    """Whether the room that freeing needs on a full disk is held as a whole."""
    reserve = proxy.database.reserve
    return reserve is not None and not reserve.owed


def _dump(proxy: Proxy) -> dict[str, Any]:
    tally = proxy.sweeper.tally
    return {
        "failing": bool(tally.failing),
        "error": tally.error,
        "groups_failing": len(tally.failing),
        "failures": tally.failures,
        "reclaimed": dict(tally.reclaimed),
    }


@router.get("/audit", dependencies=[AdminOnly])
async def sums(request: Request, proxy: ThisProxy, scope: Scope = PROXY) -> dict[str, Any]:
    """Promise 5: what came and what became of it, from counters and recounted from rows; in fleet scope added up."""
    own = await proxy.recounting.run(audit)
    own["shards"]["orphans"] = await proxy.shards.orphans.count()
    if scope == PROXY:
        return {**own, "ordinals": [proxy.owner.ordinal]}
    answers = await everywhere(proxy, request, "/audit", own)
    return {**summed(list(answers.by_ordinal.values())), **answers.coverage()}


@router.get("/metrics")
async def metrics(proxy: ThisProxy) -> Response:
    """For Prometheus. It needs no key, so it reads nothing that grows with the store."""
    sums, taken = await asyncio.gather(proxy.reader.run(ledger), asyncio.to_thread(resident.of_tree))
    weights = proxy.weights
    present = Present(
        ledger=sums,
        memory=asdict(taken),
        caches=proxy.cache_sizes(),
        queues=proxy.queue_lengths(),
        store_bytes=store_bytes(proxy.settings.state_dir / STORE_FOLDER),
        sessions_open=proxy.admission.sessions_open,
        held={"pause": weights.waiting, "drain": proxy.drains.held},
        draining=proxy.drains.draining,
        request_bytes=proxy.in_flight.nbytes,
        paused=weights.paused,
        weights={"version": weights.version, "run": weights.run, "epoch": weights.epoch},
        log_dropped=events.dropped(),
    )
    return Response(exposition(proxy.metrics, present), media_type=CONTENT_TYPE_LATEST)
