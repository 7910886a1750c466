"""Looking on over HTTP: a session's conversation."""

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from rolloutfleet.wire import JSON_MEDIA_TYPE, Conversation
from rolloutfleet_proxy.control.dependencies import AdminOnly, TheServices, find_session
from rolloutfleet_proxy.domain.errors import SessionNotFound
from rolloutfleet_proxy.services.access import there
from rolloutfleet_proxy.services.conversations import Asked

router = APIRouter()

Branch = Annotated[str | None, Query(min_length=1, max_length=128)]
Cursor = Annotated[str | None, Query(pattern=r"^[^:]{1,128}(:\d{1,10}:\d{1,10})?$")]


@router.get("/sessions/{session_id}/conversation", dependencies=[AdminOnly], responses={200: {"model": Conversation}})
async def show_conversation(
    session_id: str, request: Request, services: TheServices, branch: Branch = None, cursor: Cursor = None
) -> Response:
    """A branch, from its root to the turn that `branch` names, the newest unless it does: messages, and each token
    with its text, log-probability and version."""
    page = await services.conversations.page(Asked(session=session_id, branch=branch, cursor=cursor))
    if page is None:
        there(await find_session(request, session_id), session_id)
        raise SessionNotFound("The session has just ended.")
    return Response(page, media_type=JSON_MEDIA_TYPE)
