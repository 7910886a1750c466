"""Sessions over HTTP: start, list, show, turns, touch, close, delete."""

import json
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec.structs import asdict
from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from rolloutfleet.wire import IDEMPOTENCY_KEY_HEADER, JSON_MEDIA_TYPE, Closed, StartSessions
from rolloutfleet_proxy.api.access import (
    AdminOnly,
    AnySession,
    ThisProxy,
    find_session,
    proxy_of,
    require_admin,
    require_session,
    there,
)
from rolloutfleet_proxy.api.scopes import PROXY, Scope, paged
from rolloutfleet_proxy.api.starting import start_here
from rolloutfleet_proxy.domain.errors import InvalidJson, InvalidParameter, InvalidRequest, UnreadableJson
from rolloutfleet_proxy.proxy import Proxy
from rolloutfleet_proxy.refusals import ended
from rolloutfleet_proxy.sessions import sessions as sessions_module
from rolloutfleet_proxy.sessions import trajectories
from rolloutfleet_proxy.sessions.sessions import CLOSED, DELETED, OPEN, Listing, Session
from rolloutfleet_proxy.sessions.tombstones import Gone
from rolloutfleet_proxy.turns.rows import Turn, load_turns

router = APIRouter()

PAGE = 1000
"""Rows of a list's page at the most."""

_LAST_ROW = 2**63 - 1

State = Annotated[str | None, Query(pattern="^(open|closed|deleted)$")]
Task = Annotated[str | None, Query(max_length=512)]
Order = Annotated[Literal["oldest", "newest"], Query()]
Limit = Annotated[int, Query(ge=1, le=PAGE)]
Cursor = Annotated[str | None, Query(pattern=r"^\d{1,18}$")]


@router.get("/sessions", dependencies=[AdminOnly])
async def list_sessions(
    request: Request,
    proxy: ThisProxy,
    state: State = None,
    cursor: Annotated[str | None, Query(pattern=r"^[0-9:,]+$", max_length=100_000)] = None,
    limit: Limit = 100,
    task_id: Task = None,
    order: Order = "oldest",
    scope: Scope = PROXY,
) -> dict[str, Any]:
    """Sessions whose rows are there, oldest first unless the order is `newest`; those of one task, or all.

    In fleet scope so many of each proxy, one proxy after the other.
    """
    asked = Listing(state=state, task_id=task_id, newest_first=order == "newest", limit=limit)
    given = {"state": state, "task_id": task_id, "limit": limit, "order": order}
    return await paged(
        proxy,
        request,
        "sessions",
        lambda start: _page(proxy, replace(asked, after=_row(start))),
        scope=scope,
        cursor=cursor,
        asked={name: value for name, value in given.items() if value is not None},
    )


async def start_sessions(request: Request) -> Response:
    """Start one session, or a group of them for one task, on a ready proxy with room."""
    request.scope["route"] = _START  # its name in log and metrics
    await require_admin(request)
    proxy, asked = proxy_of(request), await _asked(request)
    key = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    answer = await proxy.placement.start(
        request, sessions=asked.group_size, key=key, here=lambda: start_here(proxy, asked, key)
    )
    if isinstance(answer, Response):
        return answer
    return Response(answer.model_dump_json(exclude_none=True), status_code=201, media_type=JSON_MEDIA_TYPE)


# A plain route: FastAPI's dependencies and models would take longer than starting the session does.
_START = Route("/sessions", start_sessions, methods=["POST"])
router.routes.append(_START)


async def _asked(request: Request) -> StartSessions:
    """Raises InvalidJson or InvalidRequest, and RequestValidationError for a field."""
    try:
        given = json.loads(await request.body())
    except (ValueError, RecursionError) as error:
        raise UnreadableJson(error) from None
    except ClientDisconnect:
        raise InvalidJson("The body broke off.") from None
    if not isinstance(given, dict):
        raise InvalidRequest("The body must be a JSON object.")
    try:
        return StartSessions.model_validate(given)
    except ValidationError as error:
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in error.errors()]) from None


async def _page(proxy: Proxy, asked: Listing) -> dict[str, Any]:
    # To find some of all is to look at each: calls that are coming must not wait for that.
    reader = proxy.recounting if asked.is_chosen else proxy.reader
    rows = await reader.run(
        lambda connection: sessions_module.list_sessions(connection, asked, served=proxy.clock.now())
    )
    return {
        "sessions": [_listed(proxy, shown) for _, shown in rows],
        "cursor": str(rows[-1][0]) if len(rows) == asked.limit else None,
    }


def _listed(proxy: Proxy, shown: dict[str, Any]) -> dict[str, Any]:
    in_flight = proxy.sessions.calls_in_flight(shown["session_id"])
    idle = {"idle_seconds": 0.0} if in_flight else {}
    return {**shown, **idle, "in_flight": in_flight, "ordinal": proxy.owner.ordinal}


def _row(cursor: str | None) -> int | None:
    """Raises InvalidParameter for a cursor of fleet scope, or one that no page ended with."""
    if not cursor:
        return None
    try:
        number = int(cursor)
    except ValueError:
        raise InvalidParameter("cursor", "This cursor is of scope=fleet.") from None
    if number > _LAST_ROW:
        raise InvalidParameter("cursor", "No page ends with this cursor.")
    return number


@router.get("/sessions/{session_id}")
async def show_session(session: AnySession, proxy: ThisProxy) -> dict[str, Any]:
    """One session."""
    figures = await proxy.reader.run(lambda connection: trajectories.figures(connection, session.id))
    return {
        "session_id": session.name,
        "group_id": session.group,
        "task_id": session.task_id,
        "ordinal": proxy.owner.ordinal,
        "state": session.state,
        "created_at": session.created_at,
        "idle_seconds": 0.0 if len(session.calls) else max(0.0, proxy.clock.now() - figures.touched),
        "in_flight": len(session.calls),
        "turns": session.turns,
        "tokens": session.tokens,
        "trajectories": figures.trajectories,
        "leased": figures.leased,
        "stale_after": session.stale_after,
        "limits": session.limits,
        "metadata": session.metadata or {},
        "agent_may": sorted(session.agent_may),
        "ordinals": [proxy.owner.ordinal],
    }


@router.get("/sessions/{session_id}/turns")
async def show_turns(
    session: AnySession, proxy: ThisProxy, cursor: Cursor = None, limit: Limit = 100
) -> dict[str, Any]:
    """A session's turns in order of commit, with ids, log-probabilities and versions."""
    turns = await proxy.reader.run(
        lambda connection: load_turns(connection, session.id, after=int(cursor or 0), limit=limit)
    )
    return {
        "turns": [_shown(session, turn) for turn in turns],
        "cursor": str(turns[-1].number) if len(turns) == limit else None,
        "ordinals": [proxy.owner.ordinal],
    }


@router.post("/sessions/{session_id}/touch")
async def touch_session(session: AnySession, proxy: ThisProxy) -> dict[str, Any]:
    """Keep a session from going stale."""
    if session.state != OPEN:
        raise ended(session)
    if not await proxy.writer.run(lambda transaction: sessions_module.touch(transaction, session.id)):
        there(await proxy.sessions.named(session.name), session.name)
    return {"session_id": session.name, "ordinals": [proxy.owner.ordinal]}


@router.post("/sessions/{session_id}/close")
async def close_session(session_id: str, request: Request, proxy: ThisProxy) -> Closed:
    """End a session: calls in flight end with 410, and what is unrewarded becomes a trajectory. Again, the same."""
    found = await find_session(request, session_id, action="close")
    ordinals = [proxy.owner.ordinal]
    if isinstance(found, Gone):
        before = await proxy.reader.run(lambda connection: trajectories.closed_before(connection, found.name))
        if before is not None:
            return Closed(session_id=found.name, trajectory_id=before.trajectory_id, ordinals=ordinals)
    session = there(found, session_id)
    if session.state == DELETED:
        raise ended(session)
    done = await proxy.writer.run(lambda transaction: trajectories.close_session(transaction, session.id), frees=True)
    proxy.end_session(session, CLOSED, freed=done.freed)
    return Closed(session_id=session.name, trajectory_id=done.trajectory_id, ordinals=ordinals)


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(session: Annotated[Session, Depends(require_session("delete"))], proxy: ThisProxy) -> Response:
    """End a session and discard its turns; what is leased stays with its lease."""
    if session.state == DELETED:
        raise ended(session)
    done = await proxy.writer.run(lambda transaction: trajectories.delete_session(transaction, session.id), frees=True)
    proxy.end_session(session, DELETED, freed=done.freed)
    return Response(status_code=204)


def _shown(session: Session, turn: Turn) -> dict[str, Any]:
    """A turn as the API shows it; `versions` has one entry a token, as `output_ids` has."""
    parent = None if turn.parent is None else session.briefs.get(turn.parent)
    return {
        "turn_id": turn.name,
        "parent_id": None if parent is None else parent.name,
        "trajectory_id": (
            None if turn.trajectory is None else trajectories.trajectory_name(session.name, turn.trajectory)
        ),
        "finish_reason": turn.finish_reason,
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": len(turn.output_ids),
        "output_ids": turn.output_ids.tolist(),
        "logprobs": turn.logprobs.tolist(),
        "versions": turn.versions_by_token(),
        "reward": turn.reward,
        "mixed_cache": turn.mixed_cache,
        "branch_reason": None if turn.branch_reason is None else asdict(turn.branch_reason),
        "constrained": turn.constrained,
        "biased_by": turn.biased_by,
        "created_at": turn.created_at,
    }
