"""Shards over HTTP: put, get, get many, delete."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, Final

import msgspec
from fastapi import APIRouter, Path, Query, Request, Response
from starlette.requests import ClientDisconnect
from starlette.responses import StreamingResponse

from rolloutfleet.tensors import RemoteTensor
from rolloutfleet.wire import (
    DEFAULT_SHARD_TTL,
    SHARD_BATCH_BYTES,
    TENSORS_MEDIA_TYPE,
    YEAR,
    DeletedShards,
    DeleteShards,
    ShardBatch,
)
from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy, find_session, there
from rolloutfleet_proxy.api.bodies import PieceByPiece, first_chunk
from rolloutfleet_proxy.api.scopes import PROXY, Answers, Scope, credentials
from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter, InvalidRequest, NoRoom, ShardsMissing
from rolloutfleet_proxy.fleet.forwarding import PassedOn, check_owner, owner_of_shards
from rolloutfleet_proxy.fleet.weights import together
from rolloutfleet_proxy.ids import TENSOR, Owner, owner_of_name
from rolloutfleet_proxy.memory.body_limit import declared_length
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.refusals import ended
from rolloutfleet_proxy.sessions.sessions import DELETED
from rolloutfleet_proxy.shards.layout import NotOneTensor
from rolloutfleet_proxy.shards.rows import Shard

router = APIRouter(dependencies=[AdminOnly])

ID_FORM: Final = r"^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$"
DELETE_PATIENCE: Final = 60.0
"""Seconds that another proxy has to remove the files of a fleet's shards."""
MISSING: Final = "missing"
"""Where the header of a batch names what is not there."""

ShardId = Annotated[str, Path(pattern=ID_FORM)]
Ttl = Annotated[float | None, Query(gt=0, le=100 * YEAR, allow_inf_nan=False)]
SessionId = Annotated[str | None, Query(min_length=1, max_length=128)]


@router.put("/shards/{shard_id}")
async def put_shard(
    shard_id: ShardId, request: Request, proxy: ThisProxy, ttl: Ttl = None, session_id: SessionId = None
) -> Response:
    """Keep the one tensor of a safetensors body, for a session, for a time, or until the first of both ends.

    201; 200 where the same tensor was kept under this id already, whose time then runs anew.
    """
    if owner_of_name(shard_id, kind=TENSOR) is not None:
        raise InvalidParameter("shard_id", "Names of this form are the proxies' own: use another.")
    await _refuse_ended(proxy, request, session_id)
    if ttl is None and session_id is None:
        ttl = DEFAULT_SHARD_TTL
    try:
        with _room(proxy, request):
            form, done = await proxy.shards.put(shard_id, request.stream(), session=session_id, ttl=ttl)
    except NotOneTensor as wrong:
        raise InvalidRequest(f"The body is not one tensor as safetensors: {wrong}.") from None
    except ClientDisconnect:
        return Response(status_code=400)
    # Its id says nothing of its owner, so a public address could not find it again.
    kept_at = proxy.settings.address_of(proxy.owner.ordinal)
    reference = RemoteTensor(shard_id, kept_at, form.shape, form.dtype)
    answer = {
        **reference.as_json(),
        "bytes": form.nbytes,
        "session_id": session_id,
        "expires_in": done.expires_in,
        "ordinals": [proxy.owner.ordinal],
    }
    return Response(msgspec.json.encode(answer), status_code=201 if done.fresh else 200, media_type="application/json")


@router.get("/shards/{shard_id}", response_class=StreamingResponse)
async def get_shard(shard_id: ShardId, proxy: ThisProxy) -> Response:
    """A tensor as safetensors, under the shard's id."""
    found = await proxy.shards.find([shard_id])
    if shard_id not in found:
        raise ShardsMissing([shard_id], param="shard_id")
    return await _answer(proxy, found.values(), None)


@router.post("/shards/batch", response_class=StreamingResponse)
async def get_shards(asked: ShardBatch, request: Request, proxy: ThisProxy) -> Response:
    """Tensors as one safetensors file, each under its shard's id.

    With `partial` those that are there; the others are named in the header's metadata, as JSON under `missing`.
    """
    elsewhere = _elsewhere(proxy, asked.ids)
    if elsewhere is not None:
        return PassedOn(proxy.peers, elsewhere, body=await request.body())
    found = await proxy.shards.find(asked.ids)
    missing = [name for name in dict.fromkeys(asked.ids) if name not in found]
    if missing and not asked.partial:
        raise ShardsMissing(missing, param="ids")
    nbytes = sum(shard.form.nbytes for shard in found.values())
    if nbytes > SHARD_BATCH_BYTES:
        raise InvalidParameter(
            "ids", f"These are {nbytes} bytes; at most {SHARD_BATCH_BYTES} in one answer: ask in parts."
        )
    return await _answer(proxy, found.values(), {MISSING: json.dumps(missing)} if missing else None)


@router.delete("/shards", response_model=DeletedShards)
async def delete_shards(asked: DeleteShards, request: Request, proxy: ThisProxy, scope: Scope = PROXY) -> Any:
    """Let go of shards. Those that are not there are no mistake, so it repeats safely.

    In fleet scope the ids may be of several proxies; those that say nothing of their owner are looked for everywhere.
    """
    if scope != PROXY:
        return await _delete_everywhere(proxy, request, asked.ids)
    elsewhere = _elsewhere(proxy, asked.ids)
    if elsewhere is not None:
        return PassedOn(proxy.peers, elsewhere, body=await request.body())
    return {**await _delete_here(proxy, asked.ids), "ordinals": [proxy.owner.ordinal]}


async def _delete_here(proxy: Proxy, ids: Sequence[str]) -> dict[str, int]:
    deleted, nbytes = await proxy.shards.delete(ids)
    return {"deleted": deleted, "bytes": nbytes}


async def _delete_everywhere(proxy: Proxy, request: Request, ids: Sequence[str]) -> dict[str, Any]:
    own = proxy.owner.ordinal
    found = Answers({}, {})

    async def delete(ordinal: int, part: list[str]) -> None:
        try:
            found.by_ordinal[ordinal] = await (_delete_here(proxy, part) if ordinal == own else ask(ordinal, part))
        except DomainError as error:
            found.failed[ordinal] = error

    async def ask(ordinal: int, part: list[str]) -> Any:
        asked = Owner(ordinal, "")
        check_owner(asked, proxy.owner, peers=proxy.peers, ephemeral=proxy.settings.ephemeral, named="shard")
        return await proxy.peers.ask(
            ordinal, "DELETE", "/shards", headers=credentials(request), content={"ids": part}, patience=DELETE_PATIENCE
        )

    parts = _parts(ids, [own, *proxy.peers.others])
    await together(*(delete(ordinal, part) for ordinal, part in parts.items()))
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


async def _refuse_ended(proxy: Proxy, request: Request, session_id: str | None) -> None:
    """Refuse a session that has ended before the body is read. The commit looks at it again."""
    if session_id is not None:
        session = there(await find_session(request, session_id), session_id)
        if session.state == DELETED:
            raise ended(session)


@contextmanager
def _room(proxy: Proxy, request: Request) -> Iterator[None]:
    """Hold room for the bytes that the body says it has, while it comes. Raises NoRoom, before any is read."""
    declared = declared_length(request.headers.get("content-length", ""), limit=proxy.settings.shard_limit)
    with proxy.admission.bytes_on_their_way(declared) as fits:
        if not fits:
            message = "There is no room for this shard now: delete some, or wait until others have lived their time."
            raise NoRoom(message)
        yield


def _elsewhere(proxy: Proxy, ids: Iterable[str]) -> int | None:
    """The ordinal of the proxy whose shards these are; None where they are this one's."""
    owner = owner_of_shards(ids, proxy.owner, param="ids")
    if owner.ordinal == proxy.owner.ordinal:
        return None
    check_owner(owner, proxy.owner, peers=proxy.peers, ephemeral=proxy.settings.ephemeral, named="shard")
    return owner.ordinal


async def _answer(proxy: Proxy, shards: Iterable[Shard], metadata: dict[str, str] | None) -> Response:
    shards = list(shards)
    body = proxy.shards.body(shards, metadata=metadata)
    try:
        first = await first_chunk(body.pieces)
    except FileNotFoundError:
        # Deleted since it was found.
        raise ShardsMissing([shard.name for shard in shards], param="ids") from None
    headers = {"Content-Length": str(body.size)}
    return PieceByPiece(first, body.pieces, media_type=TENSORS_MEDIA_TYPE, headers=headers)
