"""Paths that agents look at before their first call, to see whether anybody is there. They change nothing, and are
answered by any proxy."""

from fastapi import APIRouter, Response

from rolloutfleet_proxy.control.documents import NO_KEY
from rolloutfleet_proxy.dialects.registry import greeting_paths


def greetings() -> APIRouter:
    """The routes of all dialects."""
    made = APIRouter()
    for path in greeting_paths():
        made.head(path, openapi_extra=NO_KEY, response_class=Response)(_greet)
        made.get(path, include_in_schema=False)(_greet)
    return made


async def _greet() -> Response:
    """Somebody is there."""
    return Response()
