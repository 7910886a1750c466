"""Dumps over HTTP: the folder of this proxy, its files, and taking them in again."""

import os
from collections.abc import Iterator
from typing import Annotated, Any, BinaryIO, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from rolloutfleet.dumps.files import DumpName, parse_dump_name
from rolloutfleet.wire import JSON_MEDIA_TYPE, DumpList, DumpState, Glance, ImportDumps, ImportedDumps, Retired
from rolloutfleet_proxy.cluster.forwarding import PassedOn
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.control.bodies import CHUNK, PieceByPiece, first_chunk
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheServices
from rolloutfleet_proxy.control.scopes import PROXY, Scope, paged
from rolloutfleet_proxy.domain.errors import DumpNotFound, InvalidParameter
from rolloutfleet_proxy.http.headers import FORWARDED
from rolloutfleet_proxy.ids import SESSION, Owner, owner_of_name
from rolloutfleet_proxy.lifecycle.folder import Listed
from rolloutfleet_proxy.services.dumps import DumpService

router = APIRouter(dependencies=[AdminOnly])

PAGE: Final = 1000
"""Files of a list's page at the most."""


@router.get("/dumps", responses={200: {"model": DumpList}})
async def list_dumps(
    request: Request,
    services: TheServices,
    state: DumpState | None = None,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-z:,.-]+$", max_length=100_000)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 100,
    scope: Scope = PROXY,
) -> dict[str, Any]:
    """Files of this proxy's folder, by name; in fleet scope so many of each proxy, one proxy after the other."""
    return await paged(
        services.peers,
        request,
        "dumps",
        lambda start: _page(services.dumps, state=state, cursor=_file(start), limit=limit),
        scope=scope,
        cursor=cursor,
        asked={"limit": limit} | ({"state": state} if state else {}),
    )


@router.post("/dumps")
async def retire(services: TheServices) -> Retired:
    """Dump and free all sessions that have no call in flight and are not leased, before this proxy's storage goes."""
    reclaimed = await services.dumps.retire()
    return Retired(reclaimed=reclaimed, failing=dict(services.dumps.sweeper.failing), ordinals=services.ordinals)


@router.post("/dumps/import")
async def import_dumps(asked: ImportDumps, services: TheServices) -> ImportedDumps:
    """Take dumps of this proxy's folder in again, all or none: what they hold can be exported then."""
    return ImportedDumps(imported=await services.dumps.importer.run(asked), ordinals=services.ordinals)


@router.get("/dumps/{name}", response_class=StreamingResponse, responses={200: {"content": {JSON_MEDIA_TYPE: {}}}})
async def show_dump(name: str, request: Request, services: TheServices) -> Response:
    """A dump as it was written, also one that has been imported since; passed on to the proxy that made it."""
    dump = parse_dump_name(name)
    if dump is None:
        raise InvalidParameter("name", f"{name[:200]!r} is not a valid dump name.")
    file = await services.dumps.open(dump)
    if file is None:
        owner = _elsewhere(services.peers, dump)
        if owner is None or FORWARDED in request.headers:
            raise DumpNotFound(name, param="name")
        return PassedOn(services.peers, owner, body=b"")
    size = os.fstat(file.fileno()).st_size
    pieces = _pieces(file)
    first = await first_chunk(pieces)
    return PieceByPiece(first, pieces, media_type=JSON_MEDIA_TYPE, headers={"Content-Length": str(size)})


async def _page(dumps: DumpService, *, state: DumpState | None, cursor: str, limit: int) -> dict[str, Any]:
    files = await dumps.page(after=cursor, limit=limit, state=state)
    return {
        "dumps": [_shown(each, dumps.store.owner) for each in files],
        "cursor": files[-1].file if len(files) == limit else None,
    }


def _shown(file: Listed, owner: Owner) -> dict[str, Any]:
    head = file.head or Glance()
    return {
        "name": str(file.name),
        "session_id": file.name.session_id,
        "trajectory": file.name.number,
        "state": file.state,
        "bytes": file.bytes,
        "modified": file.modified,
        **dict(head),
        "ordinal": owner.ordinal,
    }


def _file(cursor: str | None) -> str:
    """Raises InvalidParameter for a cursor of fleet scope."""
    if cursor and ":" in cursor:
        raise InvalidParameter("cursor", "This cursor is of scope=fleet.")
    return cursor or ""


def _elsewhere(peers: Peers, dump: DumpName) -> int | None:
    owner = owner_of_name(dump.session_id, kind=SESSION)
    return owner.ordinal if owner is not None and owner.ordinal in peers.others else None


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk
