"""`?scope=fleet`: the proxy that is asked asks all others, and says who did not answer."""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal
from urllib.parse import urlencode

from fastapi import Query, Request

from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.cluster.weights import together
from rolloutfleet_proxy.domain.errors import DomainError, InvalidParameter
from rolloutfleet_proxy.http.errors import error_object
from rolloutfleet_proxy.telemetry.request_ids import REQUEST_ID, TRACES

PROXY: Final = "proxy"

Scope = Annotated[Literal["proxy", "fleet"], Query(description="`fleet`: all proxies, asked by this one")]

TIMEOUT = 10.0
"""Seconds that another proxy has to answer."""
LOOKING_ON = 1.0
"""Seconds that one which was just found silent has, where somebody looks on and wants to see the others."""


@dataclass(frozen=True, slots=True)
class Answers:
    """What each proxy answered, by ordinal, and what those that did not were asked in vain with."""

    by_ordinal: dict[int, Any]
    failed: dict[int, DomainError]

    def coverage(self) -> dict[str, Any]:
        """The part of an admin answer that names the ordinals it covers."""
        failed = sorted(self.failed.items())
        return {
            "ordinals": sorted(self.by_ordinal),
            "failed": [{"ordinal": ordinal, "error": error_object(error), **error.beside} for ordinal, error in failed],
        }


_HANDED_ON = ("authorization", "x-api-key", REQUEST_ID, *TRACES)


def credentials(request: Request) -> dict[str, str]:
    """Who calls, and in which trace: a proxy hands its caller's headers on, and keeps no key of its own."""
    return {name: request.headers[name] for name in _HANDED_ON if name in request.headers}


async def everywhere(
    peers: Peers,
    request: Request,
    path: str,
    own: Any,
    *,
    queries: Mapping[int, Mapping[str, Any]] | None = None,
    silent: float = TIMEOUT,
) -> Answers:
    """This proxy's own answer beside those of all others to `GET path`, each with its own query if there are any.

    With `queries` only the proxies that have one are asked. Those that were just found silent have `silent` seconds.
    """

    async def ask(ordinal: int) -> Any:
        timeout = silent if peers.is_silent(ordinal) else TIMEOUT
        query = "" if queries is None else f"?{urlencode(queries[ordinal])}"
        return await peers.ask(ordinal, "GET", path + query, headers=credentials(request), timeout=timeout)

    found = await answers_of((ordinal for ordinal in peers.others if queries is None or ordinal in queries), ask)
    return found if own is None else Answers({peers.own: own, **found.by_ordinal}, found.failed)


async def answers_of(ordinals: Iterable[int], ask: Callable[[int], Awaitable[Any]]) -> Answers:
    """What each of these proxies answers; all are asked at once."""
    found = Answers({}, {})

    async def asked(ordinal: int) -> None:
        try:
            found.by_ordinal[ordinal] = await ask(ordinal)
        except DomainError as error:
            found.failed[ordinal] = error

    await together(*map(asked, ordinals))
    return found


async def paged(
    peers: Peers,
    request: Request,
    name: str,
    page: Callable[[str | None], Awaitable[dict[str, Any]]],
    *,
    scope: str,
    cursor: str | None,
    asked: Mapping[str, Any],
) -> dict[str, Any]:
    """The answer to `GET /{name}`, whose `page` of this proxy begins at a cursor and is what others have as well.

    `asked` goes with the question to them. In fleet scope it is a page of each, one proxy after the other. `page`
    refuses a cursor that is none of one proxy. Raises InvalidParameter for a cursor of another scope.
    """
    if scope == PROXY:
        return {**await page(cursor), "ordinals": [peers.own]}
    begun = _begun(cursor) or dict.fromkeys([peers.own, *peers.others], "")
    mine = begun.pop(peers.own, None)
    own = None if mine is None else await page(mine)
    queries = {ordinal: {**asked} | ({"cursor": start} if start else {}) for ordinal, start in begun.items()}
    answers = await everywhere(peers, request, f"/{name}", own, queries=queries)
    return {**_listed(answers, name), **answers.coverage()}


def _listed(answers: Answers, name: str) -> dict[str, Any]:
    """Pages of several proxies as one, in order of the ordinals; its cursor goes on where each of them ended."""
    pages = [answers.by_ordinal[ordinal] for ordinal in sorted(answers.by_ordinal)]
    cursors = {ordinal: page["cursor"] for ordinal, page in sorted(answers.by_ordinal.items()) if page["cursor"]}
    return {
        name: [row for page in pages for row in page[name]],
        "cursor": ",".join(f"{ordinal}:{cursor}" for ordinal, cursor in cursors.items()) or None,
    }


def _begun(cursor: str | None) -> dict[int, str]:
    """The proxies that have more to list, and from where on each goes on: what `_listed` made.

    Raises InvalidParameter for a cursor of one proxy.
    """
    try:
        parts = [part.split(":") for part in cursor.split(",")] if cursor else []
        return {int(ordinal): start for ordinal, start in parts}
    except ValueError:
        raise InvalidParameter("cursor", "This cursor is not of scope=fleet.") from None


def summed(audits: list[dict[str, Any]]) -> dict[str, Any]:
    """Several proxies' sums of promise 5 as one; balanced where each of them is."""
    return {
        **{
            name: _added([audit[name] for audit in audits if name in audit])
            for name in ("turns", "sessions", "shards", "keys", "missing")
        },
        "balanced": all(audit["balanced"] for audit in audits),
    }


def _added(parts: list[Any]) -> Any:
    if all(isinstance(part, dict) for part in parts):
        names = {name: None for part in parts for name in part}
        return {name: _added([part[name] for part in parts if name in part]) for name in names}
    return sum(parts)
