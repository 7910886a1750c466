"""Exports and their leases over HTTP."""

from typing import Annotated

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
    Export,
    Released,
    Renewed,
    RenewLease,
)
from rolloutfleet_proxy.cluster.forwarding import PassedOn
from rolloutfleet_proxy.control.bodies import PieceByPiece, first_chunk
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheServices
from rolloutfleet_proxy.control.negotiation import preferred
from rolloutfleet_proxy.control.scopes import PROXY, Scope
from rolloutfleet_proxy.domain.errors import LeaseExpired, UnsupportedParameter
from rolloutfleet_proxy.http.errors import NotAcceptable
from rolloutfleet_proxy.services.exports import SHARDS
from rolloutfleet_proxy.store.exports import ExportGone

router = APIRouter(dependencies=[AdminOnly])

LeaseId = Annotated[str, Path(max_length=128)]


@router.post(
    "/export",
    response_class=StreamingResponse,
    responses={200: {"model": Export, "content": {TENSORS_MEDIA_TYPE: {}}}},
)
async def export(asked: AskExport, request: Request, services: TheServices, scope: Scope = PROXY) -> Response:
    """Lease trajectories and send them, as JSON or as safetensors by Accept; as shards, JSON that refers to tensors.

    Where nothing is there to lease, `lease_id` is null and there is no Lease-Id. Cut off, lost or given back, the
    same call with the same Idempotency-Key brings the same again.
    """
    if scope != PROXY:
        raise UnsupportedParameter("scope", "a lease is one proxy's; ask each proxy of GET /proxies for its own.")
    named, param = asked.session_ids or (), "group_id" if asked.session_ids is None else "session_ids"
    elsewhere = await services.ownership.elsewhere_of(named, group=asked.group_id, param=param)
    if elsewhere is not None:
        return PassedOn(services.ownership.peers, elsewhere, body=await request.body())
    forms = (JSON_MEDIA_TYPE,) if asked.as_ == SHARDS else (JSON_MEDIA_TYPE, TENSORS_MEDIA_TYPE)
    media = preferred(request.headers.get("accept"), forms)
    if media is None:
        raise NotAcceptable(f"An export as {asked.as_} is {' or '.join(forms)}.")
    key = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    try:
        made = await services.exports.export(asked, idempotency_key=key, as_json=media == JSON_MEDIA_TYPE)
        first = await first_chunk(made.pieces)
    except ExportGone as gone:
        raise LeaseExpired(f"{gone} was acknowledged elsewhere while it was read.") from None
    headers = {} if made.lease is None else {LEASE_ID_HEADER: made.lease}
    if made.size is not None:
        headers["Content-Length"] = str(made.size)
    return PieceByPiece(first, made.pieces, media_type=media, headers=headers)


@router.post("/leases/{lease_id}/ack")
async def acknowledge(lease_id: LeaseId, services: TheServices, asked: AckLease | None = None) -> Acknowledged:
    """Trained: the trajectories named, or all of the lease. Again, it answers the same."""
    done = await services.exports.acknowledge(lease_id, (asked or AckLease()).trajectory_ids)
    return Acknowledged(lease_id=lease_id, acknowledged=done, ordinals=services.ordinals)


@router.post("/leases/{lease_id}/release")
async def release(lease_id: LeaseId, services: TheServices, asked: AckLease | None = None) -> Released:
    """Give back the trajectories named, or all of the lease: they can be exported again."""
    done = await services.exports.release(lease_id, (asked or AckLease()).trajectory_ids)
    return Released(lease_id=lease_id, released=done, ordinals=services.ordinals)


@router.post("/leases/{lease_id}/renew")
async def renew(lease_id: LeaseId, services: TheServices, asked: RenewLease | None = None) -> Renewed:
    """Let the lease run anew from now."""
    seconds = (asked or RenewLease()).lease_seconds
    await services.exports.renew(lease_id, seconds=seconds)
    return Renewed(lease_id=lease_id, expires_in=seconds, ordinals=services.ordinals)
