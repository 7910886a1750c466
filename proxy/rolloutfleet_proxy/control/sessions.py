"""Sessions over HTTP: start, list, show, turns, touch, reward, close, delete."""

import json
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from msgspec import to_builtins
from pydantic import Field, ValidationError
from starlette.requests import ClientDisconnect
from starlette.routing import Route

from rolloutfleet.wire import (
    IDEMPOTENCY_KEY_HEADER,
    JSON_MEDIA_TYPE,
    ChosenSessions,
    Closed,
    CloseSession,
    GiveReward,
    Rewarded,
    SessionList,
    SessionStatus,
    StartSessions,
    Touched,
    TurnList,
)
from rolloutfleet_proxy.cluster.forwarding import PassedOn
from rolloutfleet_proxy.control.dependencies import (
    AdminOnly,
    AnySession,
    TheServices,
    find_session,
    require_admin,
    require_session,
    services_of,
)
from rolloutfleet_proxy.control.scopes import PROXY, Scope, paged
from rolloutfleet_proxy.domain.errors import InvalidJson, InvalidParameter, InvalidRequest, UnreadableJson
from rolloutfleet_proxy.domain.trajectory import trajectory_name
from rolloutfleet_proxy.domain.turn import Turn, shown_facts
from rolloutfleet_proxy.http.headers import presented_key
from rolloutfleet_proxy.services.sessions import SessionService
from rolloutfleet_proxy.sessions.registry import Session
from rolloutfleet_proxy.store.listing import Listing

router = APIRouter()

PAGE = 1000
"""Rows of a list's page at the most."""

_LAST_ROW = 2**63 - 1

Limit = Annotated[int, Query(ge=1, le=PAGE)]
Cursor = Annotated[str | None, Query(pattern=r"^\d{1,18}$")]


class ListSessions(ChosenSessions):
    """The query of a list."""

    limit: Annotated[int, Field(ge=1, le=PAGE)] = 100
    order: Literal["oldest", "newest"] = "oldest"
    cursor: Annotated[str, Field(pattern=r"^[0-9:,]+$", max_length=100_000)] | None = None
    scope: Scope = PROXY


@router.get("/sessions", dependencies=[AdminOnly], responses={200: {"model": SessionList}})
async def list_sessions(
    request: Request, services: TheServices, query: Annotated[ListSessions, Query()]
) -> dict[str, Any]:
    """Sessions whose rows are there, oldest first unless the order is `newest`; those that the query chooses, or all.

    In fleet scope so many of each proxy, one proxy after the other.
    """
    asked = Listing(chosen=query, newest_first=query.order == "newest", limit=query.limit)
    return await paged(
        services.peers,
        request,
        "sessions",
        lambda start: _page(services.sessions, replace(asked, after=_row(start))),
        scope=query.scope,
        cursor=query.cursor,
        asked={**query.said, "limit": query.limit, "order": query.order},
    )


async def start_sessions(request: Request) -> Response:
    """Start one session, or a group for one task, on a ready proxy with room; or one in the place of another."""
    request.scope["route"] = _START  # its name in log and metrics
    await require_admin(request)
    services, asked = services_of(request), await _asked(request)
    key = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    here = partial(services.sessions.start, asked, key)
    if asked.replaces is None:
        answer = await services.placement.start(request, sessions=asked.group_size, key=key, here=here)
    else:
        elsewhere = await services.ownership.elsewhere_of((asked.replaces,), param="replaces")
        if elsewhere is not None:
            return PassedOn(services.ownership.peers, elsewhere, body=await request.body())
        await services.access.seals.opened(asked.replaces)
        answer = await here()
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


async def _page(sessions: SessionService, asked: Listing) -> dict[str, Any]:
    rows = await sessions.page(asked)
    return {
        "sessions": [shown for _, shown in rows],
        "cursor": str(rows[-1][0]) if len(rows) == asked.limit else None,
    }


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


@router.get("/sessions/{session_id}", responses={200: {"model": SessionStatus}})
async def show_session(session: AnySession, services: TheServices) -> dict[str, Any]:
    """One session."""
    figures, idle = await services.sessions.figures(session)
    return {
        "session_id": session.name,
        "group_id": session.group,
        "task_id": session.task_id,
        "ordinal": services.ownership.own.ordinal,
        "state": session.state,
        "created_at": session.created_at,
        "idle_seconds": idle,
        "in_flight": len(session.calls),
        "turns": session.turns,
        "tokens": session.tokens,
        **figures,
        "stale_after": session.stale_after,
        "await_reward": session.await_reward,
        "train": session.train,
        "limits": session.limits,
        "sampling": {} if session.sampling_json is None else json.loads(session.sampling_json),
        "metadata": session.metadata or {},
        "agent_may": sorted(session.agent_may),
        "ordinals": services.ordinals,
    }


@router.get("/sessions/{session_id}/turns", responses={200: {"model": TurnList}})
async def show_turns(
    session: AnySession, services: TheServices, cursor: Cursor = None, limit: Limit = 100
) -> dict[str, Any]:
    """A session's turns in order of commit, with ids, log-probabilities and versions."""
    turns = await services.sessions.turns(session, after=int(cursor or 0), limit=limit)
    return {
        "turns": [_shown(session, turn) for turn in turns],
        "cursor": str(turns[-1].number) if len(turns) == limit else None,
        "ordinals": services.ordinals,
    }


@router.post("/sessions/{session_id}/touch", responses={200: {"model": Touched}})
async def touch_session(session: AnySession, services: TheServices) -> dict[str, Any]:
    """Keep a session from going stale."""
    await services.sessions.touch(session)
    return {"session_id": session.name, "ordinals": services.ordinals}


@router.post("/sessions/{session_id}/reward")
async def give_reward(
    asked: GiveReward,
    request: Request,
    session: Annotated[Session, Depends(require_session("reward"))],
    services: TheServices,
) -> Rewarded:
    """Reward a turn, the main loop's newest unless one is named; by default that closes a trajectory unless one is."""
    caller = "admin" if services.access.is_admin(presented_key(request.headers)) else "session"
    key = request.headers.get(IDEMPOTENCY_KEY_HEADER)
    done = await services.sessions.reward(session, asked, idempotency_key=key, caller=caller)
    return done.model_copy(update={"ordinals": services.ordinals})


@router.post("/sessions/{session_id}/close")
async def close_session(
    session_id: str, request: Request, services: TheServices, asked: CloseSession | None = None
) -> Closed:
    """End a session: calls in flight end with 410, and what is unrewarded becomes a trajectory. Again, the same."""
    found = await find_session(request, session_id, action="close")
    return await services.sessions.close(found, session_id, asked or CloseSession())


@router.delete("/sessions/{session_id}", status_code=204)
async def delete_session(
    session: Annotated[Session, Depends(require_session("delete"))], services: TheServices
) -> Response:
    """End a session and discard its turns; what is leased stays with its lease."""
    await services.sessions.delete(session)
    return Response(status_code=204)


def _shown(session: Session, turn: Turn) -> dict[str, Any]:
    """A turn as the API shows it; `versions` has one entry a token, as `output_ids` has."""
    parent = None if turn.parent is None else session.briefs.get(turn.parent)
    return {
        "turn_id": turn.name,
        "parent_id": None if parent is None else parent.name,
        "trajectory_id": (None if turn.trajectory is None else trajectory_name(session.name, turn.trajectory)),
        "finish_reason": turn.finish_reason,
        "prompt_tokens": turn.prompt_tokens,
        "completion_tokens": len(turn.output_ids),
        "output_ids": turn.output_ids.tolist(),
        "logprobs": turn.logprobs.tolist(),
        "versions": turn.versions_by_token(),
        "reward": turn.reward,
        "mixed_cache": turn.mixed_cache,
        **to_builtins(shown_facts(turn.extras, turn.branch_reason, turn.lineage)),
        "created_at": turn.created_at,
    }
