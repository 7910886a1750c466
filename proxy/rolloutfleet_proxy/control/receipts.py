"""What another proxy says of an answer of this one that it has passed on. No call of the API: only proxies make it."""

from fastapi import APIRouter, Request

from rolloutfleet.wire import Request as WireRequest
from rolloutfleet_proxy.cluster.forwarding import RECEIPTS_PATH
from rolloutfleet_proxy.control.dependencies import TheServices
from rolloutfleet_proxy.http.headers import presented_key

router = APIRouter()


class Receipt(WireRequest):
    """Whether a caller got all of its answer."""

    received: bool


@router.post(RECEIPTS_PATH + "/{name}", include_in_schema=False)
async def receipt(request: Request, name: str, asked: Receipt, services: TheServices) -> None:
    """Of the caller with this session's key. A name that nothing waits for changes nothing."""
    session = await services.access.session(presented_key(request.headers))
    services.receipts.came(name, session, received=asked.received)
