"""What a proxy says of itself: health, readiness, figures, sums, metrics."""

import asyncio
import os
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST, Gauge

from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy
from rolloutfleet_proxy.api.scopes import PROXY, Scope, everywhere, summed
from rolloutfleet_proxy.memory import resident
from rolloutfleet_proxy.proxy import STORE_FOLDER, Proxy
from rolloutfleet_proxy.restarts import boots
from rolloutfleet_proxy.sessions.sessions import count_by_state
from rolloutfleet_proxy.store.audit import audit, ledger
from rolloutfleet_proxy.store.database import store_bytes
from rolloutfleet_proxy.store.transaction import SESSIONS, TURNS
from rolloutfleet_proxy.telemetry import events
from rolloutfleet_proxy.telemetry.metrics import by_label, total

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
        "refused": by_label(proxy.metrics.refused),
        "prefix_checks": by_label(proxy.metrics.prefix_checks),
        "follow_ups": by_label(proxy.metrics.follow_ups),
        "branches": by_label(proxy.metrics.branches),
    }


def _is_reserved(proxy: Proxy) -> bool:
    """Whether the room that freeing needs on a full disk is held as a whole."""
    reserve = proxy.database.reserve
    return reserve is not None and not reserve.owed


def _dump(proxy: Proxy) -> dict[str, Any]:
    failing = proxy.sweeper.failing
    return {
        "failing": bool(failing),
        "error": next(iter(failing.values()), None),
        "groups_failing": len(failing),
        "failures": total(proxy.metrics.dump_failures),
        "reclaimed": by_label(proxy.metrics.sessions_reclaimed),
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
    measured, weights = proxy.metrics, proxy.weights
    _set(measured.calls_held, {"pause": weights.waiting, "drain": proxy.drains.held})
    measured.request_bytes.set(proxy.in_flight.nbytes)
    measured.draining.set(proxy.drains.draining)
    measured.paused.set(weights.paused)
    _set(measured.weights, {"version": weights.version, "run": weights.run, "epoch": weights.epoch})
    measured.sessions_open.set(proxy.admission.sessions_open)
    for kind in (TURNS, SESSIONS):
        for term, n in sums[kind].items():
            for reason, count in n.items() if isinstance(n, dict) else [("", n)]:
                measured.ledger.labels(kind, term, reason).set(count)
    measured.keys.set(sums["keys"])
    _set(measured.shards, sums["shards"])
    _set(measured.memory_bytes, {name.removesuffix("_bytes"): size for name, size in asdict(taken).items()})
    _set(measured.cache_bytes, proxy.cache_sizes())
    measured.store_bytes.set(store_bytes(proxy.settings.state_dir / STORE_FOLDER))
    _set(measured.queue_length, proxy.queue_lengths())
    measured.log_dropped.inc(events.dropped() - total(measured.log_dropped))
    return Response(measured.text(), media_type=CONTENT_TYPE_LATEST)


def _set(gauge: Gauge, values: Mapping[str, int]) -> None:
    """By the value of the gauge's only label."""
    for value, n in values.items():
        gauge.labels(value).set(n)
