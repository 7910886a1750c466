"""`GET /v1/models`, which SDKs and agent frameworks ask before they start."""

from typing import Any

from fastapi import APIRouter, Request

from rolloutfleet_proxy.api.access import AnySession, ThisProxy, session_with_key
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.sessions.auth import presented_key

router = APIRouter()


@router.get("/v1/models")
async def models_by_key(request: Request, proxy: ThisProxy) -> dict[str, Any]:
    """The fleet's model, by session key."""
    await session_with_key(proxy, presented_key(request.headers), None)
    return _models(proxy)


@router.get("/sessions/{session_id}/v1/models")
async def models_by_path(session: AnySession, proxy: ThisProxy) -> dict[str, Any]:
    """The fleet's model, by session path."""
    return _models(proxy)


def _models(proxy: Proxy) -> dict[str, Any]:
    model = {
        "id": proxy.settings.model,
        "object": "model",
        "created": int(proxy.started_at),
        "owned_by": "rolloutfleet",
        "max_model_len": proxy.chat_format.context_length,
    }
    return {"object": "list", "data": [model]}
