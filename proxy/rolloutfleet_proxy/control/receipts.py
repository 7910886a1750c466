"""What another proxy says of an answer of this one that it has passed on. No call of the API: only proxies make it."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request

from rolloutfleet.wire import Request as WireRequest
from rolloutfleet_proxy.cluster.forwarding import RECEIPTS_PATH
from rolloutfleet_proxy.control.dependencies import TheServices
from rolloutfleet_proxy.http.headers import presented_key
from rolloutfleet_proxy.sessions.registry import Session

router = APIRouter()


class Receipt(WireRequest):
    """Whether a caller got all of its answer."""

    received: bool


async def _session_of_key(request: Request, services: TheServices) -> Session:
    """Raises InvalidKey, before anything of the body is looked at."""
    return await services.access.session(presented_key(request.headers))


@router.post(RECEIPTS_PATH + "/{name}", include_in_schema=False)
async def receipt(
    name: str, session: Annotated[Session, Depends(_session_of_key)], asked: Receipt, services: TheServices
) -> None:
    """Of the caller with this session's key. A name that nothing waits for changes nothing."""
    services.receipts.came(name, session, received=asked.received)
