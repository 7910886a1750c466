"""`GET /v1/models` and one model of it, which SDKs and agent frameworks ask before they start."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request

from rolloutfleet_proxy.api.access import AnySession, ThisProxy, session_with_key
from rolloutfleet_proxy.chat.model_names import check_served, names_listed
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.sessions.auth import presented_key

router = APIRouter()


@router.get("/v1/models")
async def models_by_key(request: Request, proxy: ThisProxy) -> dict[str, Any]:
    """The fleet's model under its names, by session key."""
    await session_with_key(proxy, presented_key(request.headers), None)
    return _models(proxy)


@router.get("/sessions/{session_id}/v1/models")
async def models_by_path(session: AnySession, proxy: ThisProxy) -> dict[str, Any]:
    """The fleet's model under its names, by session path."""
    return _models(proxy)


# The server has unescaped the path: a name with slashes is one whether they were escaped or not.


@router.get("/v1/models/{model:path}")
async def model_by_key(request: Request, model: str, proxy: ThisProxy) -> dict[str, Any]:
    """The fleet's model under one of the names that it takes, by session key."""
    _check_named(model)
    await session_with_key(proxy, presented_key(request.headers), None)
    return _named(proxy, model)


@router.get("/sessions/{session_id}/v1/models/{model:path}")
async def model_by_path(session: AnySession, model: str, proxy: ThisProxy) -> dict[str, Any]:
    """The fleet's model under one of the names that it takes, by session path."""
    _check_named(model)
    return _named(proxy, model)


def _models(proxy: Proxy) -> dict[str, Any]:
    return {"object": "list", "data": [_model(proxy, name) for name in names_listed(proxy.settings)]}


def _check_named(model: str) -> None:
    if not model:
        raise HTTPException(404)  # A slash at the end of another route is none of this one.


def _named(proxy: Proxy, name: str) -> dict[str, Any]:
    check_served(name, proxy.settings)
    return _model(proxy, name)


def _model(proxy: Proxy, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(proxy.started_at),
        "owned_by": "rolloutfleet",
        "max_model_len": proxy.chat_format.context_length,
    }
