"""What a proxy says of itself in figures: of memory, threads and calls now, of the store's rows, for Prometheus."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from prometheus_client import Gauge

from rolloutfleet_proxy.domain.ledger import LEASED, LIVE, SESSIONS, TURNS
from rolloutfleet_proxy.engine.pause_gate import PauseGate
from rolloutfleet_proxy.engine.probing import Probing
from rolloutfleet_proxy.http.in_flight import InFlight
from rolloutfleet_proxy.process import resident
from rolloutfleet_proxy.process.allocator import Trimming
from rolloutfleet_proxy.process.collector import Collections
from rolloutfleet_proxy.services.checking import Checking
from rolloutfleet_proxy.services.dumps import DumpService
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.store import boots, leases
from rolloutfleet_proxy.store.audit import audit, ledger
from rolloutfleet_proxy.store.database import store_bytes
from rolloutfleet_proxy.telemetry import events
from rolloutfleet_proxy.telemetry.metrics import Metrics, by_label, total
from rolloutfleet_proxy.tokens.tokenizing import Tokenizing


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Reads them where they are."""

    sessions: SessionService
    tokenizing: Tokenizing
    gate: PauseGate
    metrics: Metrics
    dumps: DumpService
    shards: Shards
    in_flight: InFlight
    trimming: Trimming
    collections: Collections
    probing: Probing
    checking: Checking
    wait_for_owners: Callable[[], int]
    """Number of calls that wait for another proxy to answer again."""

    async def stats(self) -> dict[str, Any]:
        """What /stats answers of this proxy. Memory is that of a whole process tree."""
        store = self.sessions.store
        sums, booted, leased, taken = await asyncio.gather(
            store.read(ledger),
            store.read(boots.load),
            store.read(leases.count_open),
            asyncio.to_thread(resident.of_tree),
        )
        weights, reserve, opened = self.gate, store.database.reserve, self.sessions.admission.sessions_open
        full = await asyncio.to_thread(self.sessions.admission.is_full)
        return {
            "ordinal": store.owner.ordinal,
            "ordinals": [store.owner.ordinal],
            "store_id": store.owner.store_id,
            "pid": os.getpid(),
            "run": weights.run,
            "version": weights.version,
            "epoch": weights.epoch,
            "paused": weights.paused,
            "past_max_hold": weights.overdue,
            # Of rows and memory, neither of which waits for the other.
            "sessions": {"open": opened, "ended": max(0, sums["keys"] - opened)},
            "held": {kind: sums[kind][LIVE] + sums[kind][LEASED] for kind in (TURNS, SESSIONS)},
            "leases": leased,
            "in_flight": self.metrics.in_flight,
            **asdict(taken),
            "rss_budget_bytes": self.sessions.settings.current.memory.rss_budget,
            "caches": self.cache_sizes(),
            "in_flight_bytes": self.in_flight.nbytes,
            "most_in_flight_bytes": self.in_flight.most,
            "trims": self.trimming.figures(),
            "collections": self.collections.figures(),
            "drain": self.sessions.drains.shown(),
            "boots": booted,
            # Reserved: the room that freeing needs on a full disk is held as a whole.
            "store": {"full": full, "reserved": reserve is not None and not reserve.owed},
            "check": {"state": self.checking.state, "found": self.checking.found},
            "dump": self._dump(),
            "settings": {
                "generation": self.sessions.settings.current.generation,
                "live_generation": self.sessions.settings.live_generation,
                "error": self.sessions.settings.error,
                "needs_restart": list(self.sessions.settings.waiting),
            },
            "gateway": {"loses": self.probing.loses, "probes": self.probing.requests},
            "refused": by_label(self.metrics.refused),
            "tokens": by_label(self.metrics.tokens),
            "prefix_checks": by_label(self.metrics.prefix_checks),
            "follow_ups": by_label(self.metrics.follow_ups),
            "forks": by_label(self.metrics.branches),
        }

    @property
    def problem(self) -> str | None:
        """Why this proxy serves nobody just now, beyond its state."""
        return self.sessions.store.locked()

    async def audit(self) -> dict[str, Any]:
        """Promise 5: what came and what became of it, from counters and recounted from rows."""
        sums: dict[str, Any] = await self.sessions.store.recounting.run(audit)
        sums["shards"]["orphans"] = await self.shards.orphans.count()
        return sums

    async def prometheus(self) -> bytes:
        """What /metrics answers: it needs no key, so nothing is read that grows with the store."""
        store = self.sessions.store
        sums, taken, room = await asyncio.gather(
            store.read(ledger), asyncio.to_thread(resident.of_tree), asyncio.to_thread(self.sessions.admission.room)
        )
        measured, weights = self.metrics, self.gate
        held = {"pause": weights.waiting, "drain": self.sessions.drains.held, "owner": self.wait_for_owners()}
        _set(measured.calls_held, held)
        measured.request_bytes.set(self.in_flight.nbytes)
        measured.draining.set(self.sessions.drains.draining)
        measured.paused.set(weights.paused)
        measured.past_max_hold.set(weights.overdue)
        _set(measured.weights, {"version": weights.version, "run": weights.run, "epoch": weights.epoch})
        measured.sessions_open.set(self.sessions.admission.sessions_open)
        for kind in (TURNS, SESSIONS):
            for term, n in sums[kind].items():
                for reason, count in n.items() if isinstance(n, dict) else [("", n)]:
                    measured.ledger.labels(kind, term, reason).set(count)
        measured.keys.set(sums["keys"])
        _set(measured.shards, sums["shards"])
        _set(measured.memory_bytes, {name.removesuffix("_bytes"): size for name, size in asdict(taken).items()})
        measured.memory_budget_bytes.set(self.sessions.settings.current.memory.rss_budget)
        _set(measured.cache_bytes, self.cache_sizes())
        measured.store_bytes.set(store_bytes(store.database.folder))
        measured.store_limit_bytes.set(room.most)
        measured.store_full.set(room.full)
        _set(measured.disk_bytes, {"total": room.total, "free": room.free})
        waiting = {**self.tokenizing.waiting, "store_writer": store.writer.waiting, "log": events.sink().waiting}
        _set(measured.queue_length, waiting)
        measured.log_dropped.inc(events.sink().dropped - total(measured.log_dropped))
        return measured.text()

    def cache_sizes(self) -> dict[str, int]:
        """Bytes of each cache."""
        return {
            "sessions": self.sessions.registry.cached_bytes,
            "ids": self.sessions.paths.cached_bytes,
            "text": self.tokenizing.chat_format.vocabulary.cache.nbytes,
            "pages": self.sessions.store.database.cached_bytes,
        }

    def _dump(self) -> dict[str, Any]:
        failing = self.dumps.sweeper.failing
        return {
            "failing": bool(failing),
            "error": next(iter(failing.values()), None),
            "groups_failing": len(failing),
            "failures": total(self.metrics.dump_failures),
            "reclaimed": by_label(self.metrics.sessions_reclaimed),
        }


def _set(gauge: Gauge, values: Mapping[str, int]) -> None:
    """By the value of the gauge's only label."""
    for value, n in values.items():
        gauge.labels(value).set(n)
