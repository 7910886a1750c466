"""What another proxy says of an answer of this one that it has passed on. No call of the API: only proxies make it."""

from fastapi import APIRouter

from rolloutfleet.wire import Request as WireRequest
from rolloutfleet_proxy.cluster.forwarding import RECEIPTS_PATH
from rolloutfleet_proxy.control.dependencies import SessionOfKey, TheServices

router = APIRouter()


class Receipt(WireRequest):
    """Whether a caller got all of its answer."""

    received: bool


@router.post(RECEIPTS_PATH + "/{name}", include_in_schema=False)
async def receipt(name: str, session: SessionOfKey, asked: Receipt, services: TheServices) -> None:
    """Of the caller with this session's key, which is looked at before anything of the body is. A name that nothing
    waits for changes nothing."""
    services.receipts.came(name, session, received=asked.received)
