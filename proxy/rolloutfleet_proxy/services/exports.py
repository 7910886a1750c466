"""Exports: trajectories leased and sent, and what becomes of the lease."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeVar

from rolloutfleet.wire import AskExport
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.domain.errors import DomainError
from rolloutfleet_proxy.domain.idempotency import keyed_call
from rolloutfleet_proxy.engine.pause_gate import PauseGate
from rolloutfleet_proxy.exports.forms import check_included, json_pieces, safetensors
from rolloutfleet_proxy.exports.shards import references
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.services.shards import Shards
from rolloutfleet_proxy.settings import SettingsInForce
from rolloutfleet_proxy.store import damage, leases
from rolloutfleet_proxy.store.exports import ExportGone
from rolloutfleet_proxy.store.leases import Grant
from rolloutfleet_proxy.store.store import Store
from rolloutfleet_proxy.store.transaction import Transaction
from rolloutfleet_proxy.telemetry import logger
from rolloutfleet_proxy.telemetry.metrics import Metrics

T = TypeVar("T")

SHARDS: Final = "shards"


@dataclass(frozen=True, slots=True)
class Exported:
    """An export on its way: its body is made piece by piece, in worker threads."""

    lease: str | None
    pieces: Iterator[bytes]
    size: int | None = None
    """Bytes, where they are known before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportService:
    """Leases trajectories to trainers. What is freed by what becomes of a lease, memory forgets."""

    store: Store
    shards: Shards
    sessions: SessionService
    gate: PauseGate
    settings: SettingsInForce
    metrics: Metrics

    async def export(self, asked: AskExport, *, idempotency_key: str | None, as_json: bool) -> Exported:
        """Lease trajectories, and begin to make the body. The same call with the same key brings the same again.

        Raises IdempotencyKeyReused, as `leases.grant`, ExportGone where another lease's end took the rows, and
        InvalidRequest where it does not fit its form.
        """
        call = keyed_call(idempotency_key, scope="export", body=asked.model_dump_json().encode())
        # What can't be leased can't be acknowledged, which is how a full disk gets room.
        granted = await self._change(lambda transaction: leases.grant(transaction, self.store.owner, asked, call))
        if granted.lease is not None:
            failpoints.reach(failpoints.AFTER_EXPORT)
        try:
            return await self._body(await self._without_damaged(granted), as_json=as_json)
        except ExportGone:
            raise  # its lease was ended, in part at least, by whoever holds it
        except Exception:
            # Nothing of it is handed out.
            if granted.lease is not None:
                with contextlib.suppress(DomainError):  # what failed is said, whatever has become of the lease
                    await self.release(granted.lease, None)
            raise

    async def acknowledge(self, lease: str, named: list[str] | None) -> list[str]:
        """Trained: the trajectories named, or all of the lease. Raises as `leases.acknowledge`."""
        done = await self._change(partial(leases.acknowledge, lease=lease, trajectory_ids=named))
        failpoints.reach(failpoints.AFTER_ACK)
        return done

    async def release(self, lease: str, named: list[str] | None) -> list[str]:
        """Give back the trajectories named, or all of the lease. Raises as `leases.release`."""
        return await self._change(partial(leases.release, lease=lease, trajectory_ids=named))

    async def renew(self, lease: str, *, seconds: float) -> None:
        """Let the lease run anew from now. Raises as `leases.renew`."""
        await self._change(partial(leases.renew, lease=lease, seconds=seconds))

    async def expire(self) -> None:
        """Take back what leases hold whose time is up."""
        await self._change(leases.expire)

    async def _without_damaged(self, granted: Grant) -> Grant:
        read = self.store.reader.run
        damaged = {each for each in granted.members if not await read(partial(damage.is_sound, member=each))}
        if not damaged:
            return granted
        for member in damaged:
            self.metrics.damage_found.inc()
            logger.error("trajectory %s is damaged on the disk: nobody gets it", member.trajectory_id)
        return await self._change(partial(leases.withhold, granted=granted, damaged=damaged))

    async def _change(self, operation: Callable[[Transaction], T]) -> T:
        done, freed = await self.store.free(operation)
        self.sessions.forget(freed)
        return done

    async def _body(self, granted: Grant, *, as_json: bool) -> Exported:
        head = {
            "lease_id": granted.lease,
            "expires_in": granted.expires_in,
            "run": self.gate.run,
            "version": self.gate.version,
            "sessions": [{"session_id": name, "status": status} for name, status in granted.statuses],
            "ordinals": [self.store.owner.ordinal],
            "failed": [],
        }
        read = self.store.reader.run_blocking
        if granted.asked.include:
            await asyncio.to_thread(check_included, read, granted)
        if granted.asked.as_ == SHARDS:
            await self.shards.put_export(granted)
            refer = references(self.store.owner, self.settings.public_address)
            return Exported(granted.lease, json_pieces(read, granted, head, references=refer))
        if as_json:
            return Exported(granted.lease, json_pieces(read, granted, head))
        file = await asyncio.to_thread(safetensors, read, granted, head)
        return Exported(granted.lease, file.pieces, file.size)
