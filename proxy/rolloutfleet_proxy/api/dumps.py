"""Dumps over HTTP: the folder of this proxy, its files, and taking them in again."""

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any, BinaryIO, Final

from fastapi import APIRouter, Query, Request
from starlette.responses import Response, StreamingResponse

from rolloutfleet.dumps import Damaged, DumpName, Glance, parse_dump_name
from rolloutfleet.wire import JSON_MEDIA_TYPE, DumpState, ImportDumps, ImportedDumps, Retired
from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy
from rolloutfleet_proxy.api.bodies import CHUNK, PieceByPiece, first_chunk
from rolloutfleet_proxy.api.scopes import PROXY, Scope, paged
from rolloutfleet_proxy.domain.errors import DumpDamaged, DumpNotFound, InvalidParameter, NotDraining, TemporaryFailure
from rolloutfleet_proxy.dumps.folder import Listed
from rolloutfleet_proxy.fleet.forwarding import PassedOn
from rolloutfleet_proxy.fleet.heads import FORWARDED
from rolloutfleet_proxy.ids import SESSION, owner_of_name
from rolloutfleet_proxy.proxy import Proxy

router = APIRouter(dependencies=[AdminOnly])

PAGE: Final = 1000
"""Files of a list's page at the most."""


@router.get("/dumps")
async def list_dumps(
    request: Request,
    proxy: ThisProxy,
    state: DumpState | None = None,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9a-z:,.-]+$", max_length=100_000)] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE)] = 100,
    scope: Scope = PROXY,
) -> dict[str, Any]:
    """Files of this proxy's folder, by name; in fleet scope so many of each proxy, one proxy after the other."""
    return await paged(
        proxy,
        request,
        "dumps",
        lambda start: _page(proxy, state=state, cursor=_file(start), limit=limit),
        scope=scope,
        cursor=cursor,
        asked={"limit": limit} | ({"state": state} if state else {}),
    )


@router.post("/dumps")
async def retire(proxy: ThisProxy) -> Retired:
    """Dump and free all sessions that have no call in flight and are not leased, before this proxy's storage goes."""
    if not proxy.drains.draining:
        raise NotDraining()
    if proxy.cleanup.folder is None:
        raise InvalidParameter("sessions.dump.path", "There is no folder to dump to: sessions.dump.path is empty.")
    reclaimed = await proxy.sweeper.retire(proxy.cleanup)
    failing = dict(proxy.sweeper.failing)
    return Retired(reclaimed=reclaimed, failing=failing, ordinals=[proxy.owner.ordinal])


@router.post("/dumps/import")
async def import_dumps(asked: ImportDumps, proxy: ThisProxy) -> ImportedDumps:
    """Take dumps of this proxy's folder in again, all or none: what they hold can be exported then."""
    arrived = await proxy.importer.run(asked)
    return ImportedDumps.model_validate(
        {
            "imported": [
                {"name": name, "session_id": each.session_id, "trajectory_id": each.trajectory_id, "turns": each.turns}
                for name, each in arrived
            ],
            "ordinals": [proxy.owner.ordinal],
        }
    )


@router.get("/dumps/{name}", response_class=StreamingResponse, responses={200: {"content": {JSON_MEDIA_TYPE: {}}}})
async def show_dump(name: str, request: Request, proxy: ThisProxy) -> Response:
    """A dump as it was written, also one that has been imported since; passed on to the proxy that made it."""
    dump = parse_dump_name(name)
    if dump is None:
        raise InvalidParameter("name", f"{name[:200]!r} is no name of a dump.")
    with _readable():
        try:
            file = await asyncio.to_thread(proxy.dumps.open, dump)
        except Damaged as error:
            raise DumpDamaged(f"{name}: {error}.", param="name") from None
    if file is None:
        owner = _elsewhere(proxy, dump)
        if owner is None or FORWARDED in request.headers:
            raise DumpNotFound(name, param="name")
        return PassedOn(proxy.peers, owner, body=b"")
    size = await asyncio.to_thread(_size, file)
    pieces = _pieces(file)
    first = await first_chunk(pieces)
    return PieceByPiece(first, pieces, media_type=JSON_MEDIA_TYPE, headers={"Content-Length": str(size)})


async def _page(proxy: Proxy, *, state: str | None, cursor: str, limit: int) -> dict[str, Any]:
    with _readable():
        files = await asyncio.to_thread(proxy.dumps.listed, after=cursor, limit=limit, state=state, heads=True)
    return {
        "dumps": [_shown(proxy, each) for each in files],
        "cursor": files[-1].file if len(files) == limit else None,
    }


@contextlib.contextmanager
def _readable() -> Iterator[None]:
    """Raises TemporaryFailure where the disk fails."""
    try:
        yield
    except OSError as error:
        raise TemporaryFailure(f"The folder of dumps can't be read: {error}.") from None


def _shown(proxy: Proxy, file: Listed) -> dict[str, Any]:
    head = file.head or Glance()
    return {
        "name": str(file.name),
        "session_id": file.name.session_id,
        "trajectory": file.name.number,
        "state": file.state,
        "bytes": file.bytes,
        "modified": file.modified,
        **asdict(head),
        "ordinal": proxy.owner.ordinal,
    }


def _file(cursor: str | None) -> str:
    """Raises InvalidParameter for a cursor of fleet scope."""
    if cursor and ":" in cursor:
        raise InvalidParameter("cursor", "This cursor is of scope=fleet.")
    return cursor or ""


def _elsewhere(proxy: Proxy, dump: DumpName) -> int | None:
    owner = owner_of_name(dump.session_id, kind=SESSION)
    return owner.ordinal if owner is not None and owner.ordinal in proxy.peers.others else None


def _size(file: BinaryIO) -> int:
    size = file.seek(0, 2)
    file.seek(0)
    return size


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    with file:
        while chunk := file.read(CHUNK):
            yield chunk
