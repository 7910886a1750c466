"""`GET` and `DELETE …/v1/responses/{id}`: a turn shown again as the response that it was, and no more after that."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from rolloutfleet.wire import JSON_MEDIA_TYPE
from rolloutfleet_proxy.control.dependencies import AnySession, Services, TheServices
from rolloutfleet_proxy.dialects.openai_responses.request import turn_of
from rolloutfleet_proxy.dialects.openai_responses.shown import shown
from rolloutfleet_proxy.domain.errors import UnsupportedParameter
from rolloutfleet_proxy.http.headers import presented_key
from rolloutfleet_proxy.sessions.registry import Session

router = APIRouter()

Stream = Annotated[bool, Query()]
_AS_THE_API: dict[int | str, dict[str, Any]] = {
    200: {"description": "As the OpenAI Responses API has it.", "content": {JSON_MEDIA_TYPE: {}}}
}


@router.get("/v1/responses/{response_id}", responses=_AS_THE_API, response_model=None)
async def response_by_key(
    request: Request, response_id: str, services: TheServices, stream: Stream = False
) -> Response:
    """A response of the session with this key."""
    return await _shown(await _with_key(request, services), response_id, services, stream=stream)


@router.get("/sessions/{session_id}/v1/responses/{response_id}", responses=_AS_THE_API, response_model=None)
async def response_by_path(
    session: AnySession, response_id: str, services: TheServices, stream: Stream = False
) -> Response:
    """A response of this session."""
    return await _shown(session, response_id, services, stream=stream)


@router.delete("/v1/responses/{response_id}", responses=_AS_THE_API)
async def delete_response_by_key(request: Request, response_id: str, services: TheServices) -> dict[str, Any]:
    """Show a response no more; its turn stays, and is exported."""
    return await _hidden(await _with_key(request, services), response_id, services)


@router.delete("/sessions/{session_id}/v1/responses/{response_id}", responses=_AS_THE_API)
async def delete_response_by_path(session: AnySession, response_id: str, services: TheServices) -> dict[str, Any]:
    """Show a response of this session no more; its turn stays, and is exported."""
    return await _hidden(session, response_id, services)


async def _with_key(request: Request, services: Services) -> Session:
    key = presented_key(request.headers)
    found = await services.access.session(key)
    # One that is being dumped is not changed.
    return found if request.method == "GET" else await services.access.current(found, key)


async def _shown(session: Session, response_id: str, services: Services, *, stream: bool) -> Response:
    if stream:
        raise UnsupportedParameter("stream", "a response that was made is given whole.")
    turn, beginning = await services.turns.shown(session, turn_of(response_id))
    body = shown(turn, beginning, model=services.models.settings.current.model)
    return Response(body, media_type=JSON_MEDIA_TYPE)


async def _hidden(session: Session, response_id: str, services: Services) -> dict[str, Any]:
    await services.turns.hide(session, turn_of(response_id))
    return {"id": response_id, "object": "response", "deleted": True}
