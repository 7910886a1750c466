"""What another proxy says of an answer of this one that it has passed on. No call of the API: only proxies make it."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import Field

from rolloutfleet.wire import Request as WireRequest
from rolloutfleet_proxy.cluster.receipting import MOST, PATH
from rolloutfleet_proxy.control.dependencies import PeersOnly, TheServices
from rolloutfleet_proxy.dialects.registry import LONGEST_RECEIPT

router = APIRouter()

_Names = Annotated[list[Annotated[str, Field(max_length=LONGEST_RECEIPT)]], Field(max_length=MOST)]


class Receipts(WireRequest):
    """Names of answers of which callers got all, and of those of which they did not."""

    received: _Names = Field(default_factory=list)
    lost: _Names = Field(default_factory=list)


@router.post(PATH, include_in_schema=False, dependencies=[PeersOnly])
async def take_receipts(asked: Receipts, services: TheServices) -> None:
    """Names that nothing waits for change nothing."""
    for name in asked.received:
        services.receipts.came(name, received=True)
    for name in asked.lost:
        services.receipts.came(name, received=False)
