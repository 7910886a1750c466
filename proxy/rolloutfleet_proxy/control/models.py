"""`GET /v1/models` and one model of it, which SDKs and agent frameworks ask before they start."""

from typing import Any

from fastapi import APIRouter, HTTPException, Request

from rolloutfleet.wire import ServedModel, ServedModels
from rolloutfleet_proxy.control.dependencies import AnySession, SessionOfKey, TheServices, session_of_key

router = APIRouter()


@router.get("/v1/models", responses={200: {"model": ServedModels}})
async def models_by_key(session: SessionOfKey, services: TheServices) -> dict[str, Any]:
    """The fleet's model under its names, by session key."""
    return services.models.listed()


@router.get("/sessions/{session_id}/v1/models", responses={200: {"model": ServedModels}})
async def models_by_path(session: AnySession, services: TheServices) -> dict[str, Any]:
    """The fleet's model under its names, by session path."""
    return services.models.listed()


# The server has unescaped the path: a name with slashes is one whether they were escaped or not.


@router.get("/v1/models/{model:path}", responses={200: {"model": ServedModel}})
async def model_by_key(request: Request, model: str, services: TheServices) -> dict[str, Any]:
    """The fleet's model under one of the names that it takes, by session key."""
    _check_named(model)
    await session_of_key(request)
    return services.models.named(model)


@router.get("/sessions/{session_id}/v1/models/{model:path}", responses={200: {"model": ServedModel}})
async def model_by_path(session: AnySession, model: str, services: TheServices) -> dict[str, Any]:
    """The fleet's model under one of the names that it takes, by session path."""
    _check_named(model)
    return services.models.named(model)


def _check_named(model: str) -> None:
    if not model:
        raise HTTPException(404)  # A slash at the end of another route is none of this one.
