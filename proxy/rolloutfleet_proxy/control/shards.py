"""Shards over HTTP: put, get, get many, delete."""

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from rolloutfleet.wire import (
    SHARD_BATCH_BYTES,
    TENSORS_MEDIA_TYPE,
    YEAR,
    DeletedShards,
    DeleteShards,
    ShardBatch,
    StoredShard,
)
from rolloutfleet_proxy.cluster.forwarding import PassedOn
from rolloutfleet_proxy.cluster.ownership import Ownership, owner_of_shards
from rolloutfleet_proxy.control.bodies import PieceByPiece, first_chunk
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheServices, find_session
from rolloutfleet_proxy.control.scopes import PROXY, Scope, answers_of, credentials
from rolloutfleet_proxy.domain.errors import InvalidParameter, ShardsMissing
from rolloutfleet_proxy.domain.session import DELETED
from rolloutfleet_proxy.http.headers import declared_length
from rolloutfleet_proxy.ids import TENSOR, Owner, owner_of_name
from rolloutfleet_proxy.refusals import ended
from rolloutfleet_proxy.services.access import there
from rolloutfleet_proxy.services.shards import Shards, ShardService
from rolloutfleet_proxy.store.shards import Shard

router = APIRouter(dependencies=[AdminOnly])

ID_FORM: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
DELETE_TIMEOUT: Final = 60.0
"""Seconds that another proxy has to remove the files of a fleet's shards."""
MISSING: Final = "missing"
"""Where the header of a batch names what is not there."""

_TENSORS: dict[int | str, dict[str, Any]] = {200: {"content": {TENSORS_MEDIA_TYPE: {}}}}

ShardId = Annotated[str, Path(pattern=ID_FORM)]
Ttl = Annotated[float | None, Query(gt=0, le=100 * YEAR, allow_inf_nan=False)]
SessionId = Annotated[str | None, Query(min_length=1, max_length=128)]


@router.put(
    "/shards/{shard_id}",
    responses={200: {"model": StoredShard}, 201: {"model": StoredShard}},
    openapi_extra={"requestBody": {"content": {TENSORS_MEDIA_TYPE: {}}, "required": True}},
)
async def put_shard(
    shard_id: ShardId, request: Request, services: TheServices, ttl: Ttl = None, session_id: SessionId = None
) -> Response:
    """Keep the one tensor of a safetensors body, for a session, for a time, or until the first of both ends.

    201; 200 where the same tensor was kept under this id already, whose time then runs anew.
    """
    if owner_of_name(shard_id, kind=TENSOR) is not None:
        raise InvalidParameter("shard_id", "Names of this form are the proxies' own: use another.")
    await _refuse_ended(request, session_id)
    limit = services.shards.settings.current.shard_limit
    declared = declared_length(request.headers.get("content-length", ""), limit=limit)
    try:
        stored, fresh = await services.shards.put(
            shard_id, request.stream(), declared=declared, session=session_id, ttl=ttl
        )
    except ClientDisconnect:
        return Response(status_code=400)
    answer = msgspec.json.encode({**stored, "ordinals": services.ordinals})
    return Response(answer, status_code=201 if fresh else 200, media_type="application/json")


@router.get("/shards/{shard_id}", response_class=StreamingResponse, responses=_TENSORS)
async def get_shard(shard_id: ShardId, services: TheServices) -> Response:
    """A tensor as safetensors, under the shard's id."""
    found = await services.shards.shelf.find([shard_id])
    if shard_id not in found:
        raise ShardsMissing([shard_id], param="shard_id")
    return await _answer(services.shards.shelf, found.values(), None)


@router.post("/shards/batch", response_class=StreamingResponse, responses=_TENSORS)
async def get_shards(asked: ShardBatch, request: Request, services: TheServices) -> Response:
    """Tensors as one safetensors file, each under its shard's id.

    With `partial` those that are there; the others are named in the header's metadata, as JSON under `missing`.
    """
    elsewhere = _elsewhere(services.ownership, asked.ids)
    if elsewhere is not None:
        return PassedOn(services.ownership.peers, elsewhere, body=await request.body())
    found = await services.shards.shelf.find(asked.ids)
    missing = [name for name in dict.fromkeys(asked.ids) if name not in found]
    if missing and not asked.partial:
        raise ShardsMissing(missing, param="ids")
    nbytes = sum(shard.form.nbytes for shard in found.values())
    if nbytes > SHARD_BATCH_BYTES:
        raise InvalidParameter(
            "ids", f"These are {nbytes} bytes; at most {SHARD_BATCH_BYTES} in one answer: ask in parts."
        )
    return await _answer(services.shards.shelf, found.values(), {MISSING: json.dumps(missing)} if missing else None)


@router.delete("/shards", response_model=DeletedShards)
async def delete_shards(asked: DeleteShards, request: Request, services: TheServices, scope: Scope = PROXY) -> Any:
    """Let go of shards. Those that are not there are no mistake, so it repeats safely.

    In fleet scope the ids may be of several proxies; those that say nothing of their owner are looked for everywhere.
    """
    if scope != PROXY:
        return await _delete_everywhere(services.shards, services.ownership, request, asked.ids)
    elsewhere = _elsewhere(services.ownership, asked.ids)
    if elsewhere is not None:
        return PassedOn(services.ownership.peers, elsewhere, body=await request.body())
    return {**await services.shards.delete(asked.ids), "ordinals": services.ordinals}


async def _delete_everywhere(
    shards: ShardService, ownership: Ownership, request: Request, ids: Sequence[str]
) -> dict[str, Any]:
    peers = ownership.peers
    parts = _parts(ids, [peers.own, *peers.others])

    async def delete(ordinal: int) -> Any:
        if ordinal == peers.own:
            return await shards.delete(parts[ordinal])
        ownership.check(Owner(ordinal, ""), named="shard")
        asked, caller = {"ids": parts[ordinal]}, credentials(request)
        return await peers.ask(ordinal, "DELETE", "/shards", headers=caller, content=asked, timeout=DELETE_TIMEOUT)

    found = await answers_of(parts, delete)
    answers = found.by_ordinal.values()
    sums = {name: sum(answer[name] for answer in answers) for name in ("deleted", "bytes")}
    return {**sums, **found.coverage()}


def _parts(ids: Iterable[str], everyone: Sequence[int]) -> dict[int, list[str]]:
    """The ids that each proxy is asked for: its own, and those that say nothing of their owner."""
    parts: dict[int, list[str]] = {}
    for name in ids:
        owner = owner_of_name(name, kind=TENSOR)
        for ordinal in everyone if owner is None else (owner.ordinal,):
            parts.setdefault(ordinal, []).append(name)
    return parts


async def _refuse_ended(request: Request, session_id: str | None) -> None:
    """Refuse a session that has ended before the body is read. The commit looks at it again."""
    if session_id is not None:
        session = there(await find_session(request, session_id), session_id)
        if session.state == DELETED:
            raise ended(session)


def _elsewhere(ownership: Ownership, ids: Iterable[str]) -> int | None:
    """The ordinal of the proxy whose shards these are; None where they are this one's."""
    return ownership.elsewhere(owner_of_shards(ids, ownership.own, param="ids"), named="shard")


async def _answer(shelf: Shards, shards: Iterable[Shard], metadata: dict[str, str] | None) -> Response:
    shards = list(shards)
    body = shelf.body(shards, metadata=metadata)
    try:
        first = await first_chunk(body.pieces)
    except FileNotFoundError:
        # Deleted since it was found.
        raise ShardsMissing([shard.name for shard in shards], param="ids") from None
    headers = {"Content-Length": str(body.size)}
    return PieceByPiece(first, body.pieces, media_type=TENSORS_MEDIA_TYPE, headers=headers)
