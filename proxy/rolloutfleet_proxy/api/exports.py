"""Exports and their leases over HTTP."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Request
from starlette.responses import Response, StreamingResponse

from rolloutfleet.wire import (
    IDEMPOTENCY_KEY_HEADER,
    JSON_MEDIA_TYPE,
    LEASE_ID_HEADER,
    TENSORS_MEDIA_TYPE,
    AckLease,
    Acknowledged,
    AskExport,
    Released,
    Renewed,
    RenewLease,
)
from rolloutfleet_proxy import failpoints
from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy
from rolloutfleet_proxy.api.bodies import PieceByPiece, first_chunk
from rolloutfleet_proxy.api.negotiation import preferred
from rolloutfleet_proxy.api.scopes import PROXY, Scope
from rolloutfleet_proxy.domain.errors import InvalidRequest, LeaseExpired, UnsupportedParameter
from rolloutfleet_proxy.exports import leases
from rolloutfleet_proxy.exports.forms import HeaderTooLarge, References, json_pieces, safetensors
from rolloutfleet_proxy.exports.leases import Grant, LeaseChange
from rolloutfleet_proxy.exports.reads import ExportGone
from rolloutfleet_proxy.exports.shards import ExportShards, references
from rolloutfleet_proxy.fleet.forwarding import Named, PassedOn, check_owner, owner_of_names
from rolloutfleet_proxy.http.errors import NotAcceptable
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.sessions.idempotency import keyed_call
from rolloutfleet_proxy.store.writer import StoreBroken, StoreFull

SHARDS: Final = "shards"

router = APIRouter(dependencies=[AdminOnly])

LeaseId = Annotated[str, Path(max_length=128)]
Headers = dict[str, str]


@router.post(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"content": {JSON_MEDIA_TYPE: {}, TENSORS_MEDIA_TYPE: {}}}},
)
async def export(asked: AskExport, request: Request, proxy: ThisProxy, scope: Scope = PROXY) -> Response:
    """Lease trajectories and send them, as JSON or as safetensors by Accept; as shards, JSON that refers to tensors.

    Where nothing is there to lease, `lease_id` is null and there is no Lease-Id. Cut off, lost or given back, the
    same call with the same Idempotency-Key brings the same again.
    """
    if scope != PROXY:
        raise UnsupportedParameter("scope", "a lease is one proxy's; ask each proxy of GET /proxies for its own.")
    elsewhere = await _elsewhere(proxy, asked)
    if elsewhere is not None:
        return PassedOn(proxy.peers, elsewhere, body=await request.body())
    forms = (JSON_MEDIA_TYPE,) if asked.as_ == SHARDS else (JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE)
    media = preferred(request.headers.get("accept"), forms)
    if media is None:
        raise NotAcceptable(f"An export as {asked.as_} is {' or '.join(forms)}.")
    call = keyed_call(
        request.headers.get(IDEMPOTENCY_KEY_HEADER), scope="export", body=asked.model_dump_json().encode()
    )
    # What can't be leased can't be acknowledged, which is how a full disk gets room.
    granted = await proxy.writer.run(
        lambda transaction: leases.grant(transaction, proxy.owner, asked, call), frees=True
    )
    proxy.forget(granted.freed)
    if granted.lease is not None:
        failpoints.reach(failpoints.AFTER_EXPORT)
    try:
        pieces, headers = await _body(proxy, granted, media)
        first = await first_chunk(pieces)
    except ExportGone as gone:
        raise LeaseExpired(f"{gone} was acknowledged elsewhere while it was read.") from None
    return PieceByPiece(first, pieces, media_type=media, headers=headers)


@router.post("/leases/{lease_id}/ack")
async def acknowledge(lease_id: LeaseId, proxy: ThisProxy, asked: AckLease | None = None) -> Acknowledged:
    """Trained: the trajectories named, or all of the lease. Again, it answers the same."""
    named = None if asked is None else asked.trajectory_ids
    done = await _change(proxy, lambda transaction: leases.acknowledge(transaction, lease_id, named))
    failpoints.reach(failpoints.AFTER_ACK)
    return Acknowledged(lease_id=lease_id, acknowledged=done.trajectory_ids, ordinals=[proxy.owner.ordinal])


@router.post("/leases/{lease_id}/release")
async def release(lease_id: LeaseId, proxy: ThisProxy, asked: AckLease | None = None) -> Released:
    """Give back the trajectories named, or all of the lease: they can be exported again."""
    named = None if asked is None else asked.trajectory_ids
    done = await _change(proxy, lambda transaction: leases.release(transaction, lease_id, named))
    return Released(lease_id=lease_id, released=done.trajectory_ids, ordinals=[proxy.owner.ordinal])


@router.post("/leases/{lease_id}/renew")
async def renew(lease_id: LeaseId, proxy: ThisProxy, asked: RenewLease | None = None) -> Renewed:
    """Let the lease run anew from now."""
    seconds = (asked or RenewLease()).lease_seconds
    done = await _change(proxy, lambda transaction: leases.renew(transaction, lease_id, seconds=seconds))
    return Renewed(lease_id=lease_id, expires_in=done.expires_in, ordinals=[proxy.owner.ordinal])


async def _elsewhere(proxy: Proxy, asked: AskExport) -> int | None:
    """The ordinal of the proxy whose sessions are asked for; None where they are this one's, or nobody's.

    Sessions and groups that were imported here are this one's, whoever made their names.
    """
    param = "group_id" if asked.session_ids is None else "session_ids"
    here = await proxy.adopted.among(asked.session_ids or (), group=asked.group_id)
    owner = owner_of_names(asked.session_ids or (), group=asked.group_id, param=param, own=proxy.owner, here=here)
    if owner is None or owner.ordinal == proxy.owner.ordinal:
        return None
    named: Named = "session" if asked.session_ids else "group"
    check_owner(owner, proxy.owner, peers=proxy.peers, ephemeral=proxy.settings.ephemeral, named=named)
    return owner.ordinal


async def _change(proxy: Proxy, operation: Any) -> LeaseChange:
    done: LeaseChange = await proxy.writer.run(operation, frees=True)
    proxy.forget(done.freed)
    return done


async def _body(proxy: Proxy, granted: Grant, media: str) -> tuple[Iterator[bytes], Headers]:
    head = {
        "lease_id": granted.lease,
        "expires_in": granted.expires_in,
        "run": proxy.weights.run,
        "version": proxy.weights.version,
        "sessions": [{"session_id": name, "status": status} for name, status in granted.statuses],
        "ordinals": [proxy.owner.ordinal],
        "failed": [],
    }
    headers = {} if granted.lease is None else {LEASE_ID_HEADER: granted.lease}
    read = proxy.reader.run_blocking
    if granted.asked.as_ == SHARDS:
        return json_pieces(read, granted, head, references=await _put_shards(proxy, granted)), headers
    if media == JSON_MEDIA_TYPE:
        return json_pieces(read, granted, head), headers
    try:
        file = await asyncio.to_thread(safetensors, read, granted, head)
    except HeaderTooLarge:
        await _give_back(proxy, granted)
        raise InvalidRequest(
            "The messages of this export don't fit in a safetensors header (100 MB). Nothing is leased: "
            f"ask for fewer trajectories, or for {JSON_MEDIA_TYPE}."
        ) from None
    return file.pieces(), {**headers, "Content-Length": str(file.size)}


async def _put_shards(proxy: Proxy, granted: Grant) -> References:
    try:
        await ExportShards(proxy.shards, proxy.writer, proxy.reader, proxy.owner).put(granted)
    except (StoreFull, StoreBroken):
        with contextlib.suppress(StoreFull, StoreBroken):
            await _give_back(proxy, granted)
        raise
    return references(proxy.owner, proxy.settings.public_url or proxy.settings.address_of(proxy.owner.ordinal))


async def _give_back(proxy: Proxy, granted: Grant) -> None:
    lease = granted.lease
    if lease is not None:
        await _change(proxy, lambda transaction: leases.release(transaction, lease))
