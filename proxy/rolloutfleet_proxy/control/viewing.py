"""Looking on over HTTP: a session's conversation, and turns as they are committed."""

import asyncio
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Header, Query, Request, Response
from starlette.types import Receive, Scope, Send

from rolloutfleet.wire import EVENTS_MEDIA_TYPE, JSON_MEDIA_TYPE, Conversation
from rolloutfleet_proxy.control.dependencies import AdminOnly, Services, TheServices, find_session
from rolloutfleet_proxy.domain.errors import SessionNotFound
from rolloutfleet_proxy.services.access import there
from rolloutfleet_proxy.services.commits import Commit, CommitReader
from rolloutfleet_proxy.services.conversations import Asked

router = APIRouter()

EVENTS: Final = "/events"

Branch = Annotated[str | None, Query(min_length=1, max_length=128)]
Cursor = Annotated[str | None, Query(pattern=r"^[^:]{1,128}(:\d{1,10}:\d{1,10})?$")]
TurnName = Annotated[str | None, Query(min_length=1, max_length=128)]

_encode = msgspec.json.Encoder().encode
_BEGIN: Final = b": following\nid: %s\n\n"
"""No event, but whoever comes again says what it had seen."""
_SILENCE: Final = b": nothing new\n\n"


@router.get("/sessions/{session_id}/conversation", dependencies=[AdminOnly], responses={200: {"model": Conversation}})
async def show_conversation(
    session_id: str,
    request: Request,
    services: TheServices,
    branch: Branch = None,
    cursor: Cursor = None,
    outline: bool = False,
) -> Response:
    """A branch, from its root to the turn that `branch` names, the newest unless it does: messages, and each token
    with its text, log-probability and version. An outline has the turns alone, of all branches unless one is named."""
    asked = Asked(session=session_id, branch=branch, cursor=cursor, outline=outline)
    page = await services.conversations.page(asked)
    if page is None:
        there(await find_session(request, session_id), session_id)
        raise SessionNotFound("The session has just ended.")
    return Response(page, media_type=JSON_MEDIA_TYPE)


class EventStream(Response):
    """What a reader takes, as server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html)."""

    media_type = EVENTS_MEDIA_TYPE

    def __init__(self, services: Services, *, after: str | None, follow: bool) -> None:
        super().__init__(headers={"cache-control": "no-store"})
        del self.headers["content-length"]
        self._services, self._after, self._follow = services, after, follow

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises as `Commits.reader`, before anything is sent."""
        with self._services.commits.reader(self._after, holding=self._services.drains.holding) as reader:
            leaving = asyncio.ensure_future(_left(receive))
            leaving.add_done_callback(lambda _: reader.end())
            try:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                await self._tell(reader, send)
            finally:
                leaving.cancel()

    async def _tell(self, reader: CommitReader, send: Send) -> None:
        data = _BEGIN % reader.last.encode() + _news(reader)
        while not reader.ended and (data or self._follow):
            await send({"type": "http.response.body", "body": data or _SILENCE, "more_body": True})
            if self._follow:
                await reader.wait()
            data = _news(reader)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


@router.get(
    EVENTS,
    dependencies=[AdminOnly],
    response_class=Response,
    responses={200: {"content": {EVENTS_MEDIA_TYPE: {}}, "description": "Server-sent events."}},
)
async def follow_commits(
    services: TheServices,
    cursor: TurnName = None,
    follow: bool = True,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Turns as they are committed, as server-sent events, from now on or behind the turn that the cursor names."""
    return EventStream(services, after=last_event_id or cursor, follow=follow)


def _news(reader: CommitReader) -> bytes:
    """What a reader has not been told yet, as events; each has the turn's name as its id."""
    found = reader.take()
    if found is None:
        return b"id: %s\nevent: reset\ndata: {}\n\n" % reader.last.encode()
    return b"".join(map(_event, found))


def _event(commit: Commit) -> bytes:
    return b"id: %s\nevent: commit\ndata: %s\n\n" % (commit.turn_id.encode(), _encode(commit))


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
