"""Draining over HTTP."""

from typing import Annotated, Any

from fastapi import APIRouter, Query

from rolloutfleet.wire import AskDrain
from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy

router = APIRouter(dependencies=[AdminOnly])


@router.post("/drain")
async def drain(asked: AskDrain, proxy: ThisProxy) -> dict[str, Any]:
    """Take no new sessions, and in mode quiesce hold calls; then stay, restart or exit. Again, it is renewed."""
    return {**await proxy.drains.ask(asked), "ordinals": [proxy.owner.ordinal]}


@router.delete("/drain")
async def undo_drain(proxy: ThisProxy, id: Annotated[str | None, Query(max_length=128)] = None) -> dict[str, Any]:
    """Go on: the drain of that id, or whichever is in force. Without one, nothing changes."""
    return {"undone": await proxy.drains.undo(id), "ordinals": [proxy.owner.ordinal]}
