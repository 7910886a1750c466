"""The proxies of the fleet, over HTTP."""

from typing import Any

from fastapi import APIRouter

from rolloutfleet_proxy.api.access import AdminOnly, ThisProxy

router = APIRouter(dependencies=[AdminOnly])


@router.get("/proxies")
async def show_proxies(proxy: ThisProxy) -> dict[str, Any]:
    """Every proxy's ordinal, address and state, as this one saw it last."""
    return {
        "proxies": [
            {"ordinal": peer.ordinal, "url": peer.url, "state": peer.state, "sessions_open": peer.sessions_open}
            for peer in proxy.peers.table()
        ],
        "ordinals": [proxy.owner.ordinal],
    }
