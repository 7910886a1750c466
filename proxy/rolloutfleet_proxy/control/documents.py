"""The API as OpenAPI describes it: what each route takes and answers.

Most of it FastAPI reads from the routes. Those that it does not serve itself are written down here.
"""

from typing import Any, Final

from fastapi import APIRouter, FastAPI, Request
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.openapi.utils import get_openapi
from starlette.responses import HTMLResponse, JSONResponse, Response

from rolloutfleet.wire import JSON_MEDIA_TYPE, Refusal, StartedSessions, StartSessions
from rolloutfleet_proxy.control.dependencies import AdminOnly
from rolloutfleet_proxy.dialects.registry import call_paths, count_paths

router = APIRouter()
page = APIRouter()

EVERY_ERROR: Final[dict[int | str, dict[str, Any]]] = {
    "default": {"model": Refusal, "description": "What went wrong: `error.code` is one of docs/api.md."}
}
NO_KEY: Final[dict[str, Any]] = {"security": []}
"""`openapi_extra` of a route that asks for no key."""
_EVENTS: Final = "text/event-stream"
_KEYS: Final = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


@router.get("/openapi.json", dependencies=[AdminOnly], responses={200: {"model": dict[str, Any]}})
async def show_schema(request: Request) -> Response:
    """This description."""
    return JSONResponse(described(request.app))


@page.get("/docs", include_in_schema=False)
async def show_page(request: Request) -> HTMLResponse:
    """The description in a browser, which could send no key: so it is part of the page."""
    app = request.app
    return get_swagger_ui_html(
        openapi_url="/openapi.json", title=app.title, swagger_ui_parameters={"spec": described(app)}
    )


def described(app: FastAPI) -> dict[str, Any]:
    """The document, made at its first use."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, routes=[*app.routes, *_beside().routes])
        for operations in found["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)  # FastAPI's own, which a proxy answers as 400
                _only_as_declared(operation["responses"].get("200", {}))
        found["components"]["securitySchemes"] = _KEYS
        found["security"] = [{name: []} for name in _KEYS]
        app.openapi_schema = found
    return app.openapi_schema


def _only_as_declared(reply: dict[str, Any]) -> None:
    """Leave the declared model: FastAPI mixes it with what it makes of a handler's `dict`."""
    for content in reply.get("content", {}).values():
        declared = {word: content["schema"][word] for word in ("$ref", "anyOf") if word in content.get("schema", {})}
        content.update({"schema": declared} if declared else {})


def _beside() -> APIRouter:
    router = APIRouter(responses=EVERY_ERROR)
    router.post("/sessions", status_code=201, response_model=StartedSessions)(_start_sessions)
    for dialect, path in call_paths():
        answer = {"description": f"As {dialect.api} has it.", "content": {JSON_MEDIA_TYPE: {}, _EVENTS: {}}}
        found_by = _chat_by_path if "{session_id}" in path else _chat_by_key
        router.post(path, responses={200: answer}, response_model=None)(found_by)
    for dialect, path in count_paths():
        answer = {"description": f"As {dialect.api} has it.", "content": {JSON_MEDIA_TYPE: {}}}
        found_by = _count_by_path if "{session_id}" in path else _count_by_key
        router.post(path, responses={200: answer}, response_model=None)(found_by)
    return router


async def _start_sessions(asked: StartSessions) -> None:
    """Start one session, or a group of them for one task, on a ready proxy with room."""


async def _chat_by_key(asked: dict[str, Any]) -> None:
    """A model call, captured; the session is found by its key."""


async def _chat_by_path(session_id: str, asked: dict[str, Any]) -> None:
    """A model call of this session, captured."""


async def _count_by_key(asked: dict[str, Any]) -> None:
    """The tokens of the prompt that such a call would have, in the session with this key."""


async def _count_by_path(session_id: str, asked: dict[str, Any]) -> None:
    """The tokens of the prompt that such a call of this session would have."""
