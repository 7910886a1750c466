"""Who may see the page: the loopback of a login node is shared by all of its users.

Whoever opens the URL that was printed gets a cookie for its token, once. Without the cookie nothing is served. Names
other than the loopback's are refused, as a page elsewhere could have its own name resolve to this machine.
"""

import hmac
import html
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_COOKIES: Final = 32
"""Browsers that are let in; the oldest is forgotten for a further one."""
TOKEN: Final = "token"
AGAIN: Final = "again"
"""In the query of what a page asked for once more by itself."""
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_NAME: Final = r"(?:localhost|127\.0\.0\.1|\[::1\])(?::\d{1,5})?"
_HOST: Final = re.compile(_NAME, re.IGNORECASE)
_ORIGIN: Final = re.compile(f"https?://{_NAME}", re.IGNORECASE)


class Access:
    """Tokens and cookies. `announce` is told each new URL's query."""

    def __init__(self, announce: Callable[[str], None]) -> None:
        self._announce = announce
        self._token = ""
        self._cookies: dict[str, None] = {}
        self._name = f"rolloutfleet-inspect-{secrets.token_hex(4)}"
        """Its own: a browser sends the cookies of one host to all ports, as those of two tunnels."""

    def open(self) -> None:
        """Have a new token, which the next one to come exchanges."""
        self._token = secrets.token_urlsafe(24)
        self._announce(self._token)

    def exchange(self, token: str) -> str | None:
        """The cookie's header for a token, which is used up; None for a wrong one."""
        if not self._token or not hmac.compare_digest(token.encode(), self._token.encode()):
            return None
        cookie = secrets.token_urlsafe(32)
        while len(self._cookies) >= MOST_COOKIES:
            del self._cookies[next(iter(self._cookies))]
        self._cookies[cookie] = None
        self.open()
        return f"{self._name}={cookie}; Path=/; HttpOnly; SameSite=Strict"

    def lets_in(self, cookies: Iterable[str]) -> bool:
        """Whether one of the cookies in a request's headers is one that was given out."""
        # As browsers do it. `http.cookies` takes none where one of another program here is not as it should be.
        given = [value for header in cookies if (value := cookie_parser(header).get(self._name))]
        return any(hmac.compare_digest(value.encode(), known.encode()) for value in given for known in self._cookies)


class Guarded:
    """An application behind its `Access`, with the headers that every answer has."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self._refusal(scope)
        await (self._app if answer is None else answer)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """What is answered in the place of the application; None: nothing is wrong."""
        headers = Headers(scope=scope)
        hosts, origins = headers.getlist("host"), headers.getlist("origin")
        if len(hosts) != 1 or not _HOST.fullmatch(hosts[0]):
            return _said(scope, 421, "This page answers to localhost, 127.0.0.1 and [::1] alone.")
        if not all(_ORIGIN.fullmatch(origin) for origin in origins):
            return _said(scope, 403, "A page of another origin asked for this.")
        if scope["method"] not in ("GET", "HEAD"):
            return _said(scope, 405, "This page is for reading alone: GET and HEAD.", {"allow": "GET, HEAD"})
        return self._exchanged(scope) or self._unless_let_in(scope, headers)

    def _exchanged(self, scope: Scope) -> Response | None:
        """For a request with a token: the cookie, and the way to the page without it."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get(TOKEN)
        if not given or scope["method"] != "GET" or scope["path"] != "/":
            return None
        cookie = self._access.exchange(given[0])
        if cookie is None and self._access.lets_in(Headers(scope=scope).getlist("cookie")):
            return RedirectResponse("index.html", status_code=303)
        if cookie is None:
            return _said(scope, 401, "This URL was used before, or is of another run: the terminal shows a new one.")
        return RedirectResponse("index.html", status_code=303, headers={"set-cookie": cookie})

    def _unless_let_in(self, scope: Scope, headers: Headers) -> Response | None:
        if self._access.lets_in(headers.getlist("cookie")):
            return None
        if _led_here(scope, headers):
            query = html.escape(f"{scope['query_string'].decode('latin-1')}&{AGAIN}")
            return HTMLResponse(_AGAIN.format(query=query), 401)
        return _said(
            scope,
            401,
            "Open the URL that `rolloutfleet inspect` shows in its terminal: the last one, with ?token= in it. It "
            "works once, and a new one is shown whenever one was used.",
        )


def _led_here(scope: Scope, headers: Headers) -> bool:
    """Whether a link elsewhere led to this page: strict cookies don't come with that, so it is asked for once more."""
    elsewhere = headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") == "navigate"
    return elsewhere and AGAIN not in scope["query_string"].decode("latin-1")


_AGAIN: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><meta http-equiv="refresh" content="0;url=?{query}">'
    "<title>RolloutFleet</title><p>One moment.</html>"
)


def _said(scope: Scope, status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    """For a person, or for the page's own code. The text is ours."""
    if scope["path"].startswith("/data/"):
        return JSONResponse({"error": {"message": text}}, status, headers)
    page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>RolloutFleet</title><p>{text}</html>'
    return HTMLResponse(page, status, headers)
