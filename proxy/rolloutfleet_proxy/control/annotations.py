"""What a trainer says of turns afterwards, over HTTP."""

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect

from rolloutfleet.wire import TENSORS_MEDIA_TYPE, AnnotatedSession
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheServices, find_session
from rolloutfleet_proxy.services.access import there
from rolloutfleet_proxy.sessions.registry import Session

router = APIRouter()


@router.post(
    "/sessions/{session_id}/annotations",
    dependencies=[AdminOnly],
    responses={200: {"model": AnnotatedSession}},
    openapi_extra={"requestBody": {"content": {TENSORS_MEDIA_TYPE: {}}, "required": True}},
)
async def annotate_turns(session_id: str, request: Request, services: TheServices) -> Any:
    """Keep series of numbers for the output tokens of turns, and notes, as safetensors. Again, they are replaced."""

    async def find() -> Session:
        return there(await find_session(request, session_id), session_id)

    await find()
    try:
        body = await request.body()
    except ClientDisconnect:
        return Response(status_code=400)
    return await services.annotations.annotate(body, find)
