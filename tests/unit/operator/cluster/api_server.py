"""An API server that holds its objects in memory and serves them on the loop of unit tests.

It does what the operator asks of one: get, list by labels and fields, server-side apply of one manager, patches,
preconditions, garbage collection, watches. tests/cluster has the real one.
"""

import asyncio
import copy
import itertools
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from kubernetes.aio.client import ApiClient, Configuration
from tests.unit.web_apps import serving

from rolloutfleet_operator.cluster.api import Api, Object
from rolloutfleet_operator.cluster.children.names import API_KINDS, OPERATOR
from rolloutfleet_operator.policy.observed import text_of

KINDS: Final = {f"{version}/{plural}": kind for kind, (version, plural) in API_KINDS.items()}
NOVEMBER: Final = 1_764_000_000.0
"""Seconds since 1970, where the loop's clock begins."""
_UNVERSIONED: Final = ("metadata", "status")
"""Parts of an object whose change is no new generation."""


def now() -> float:
    """Seconds since 1970."""
    return NOVEMBER + asyncio.get_running_loop().time()


@dataclass(frozen=True, slots=True)
class Place:
    """The resource that a request names."""

    kind: str
    namespace: str
    name: str
    subresource: str


class Refusal(Exception):
    """A request is refused, as the `Status` that is answered says."""

    def __init__(self, status: int, reason: str, message: str = "", **details: Any) -> None:
        super().__init__(reason)
        self.status = status
        self.body = {"kind": "Status", "reason": reason, "message": message or reason, "details": details}


Key = tuple[str, str, str]
"""Kind, namespace and name."""


@dataclass
class ApiServer:
    """Its objects, and what was asked of it."""

    objects: dict[Key, Object] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    """`METHOD kind/name` of each request; `list` and `apply` are methods of their own."""
    watchers: list[Callable[[str, Object], None]] = field(default_factory=list)
    """Called with the kind and the object after each change."""
    refusing: list[Callable[[str, Place, Any], None]] = field(default_factory=list)
    """Called with method, place and body before anything is done: raise `Refusal`."""
    delays: Callable[[str, Place, Any], tuple[float, float]] = lambda *_: (0.0, 0.0)
    """Told the same, seconds before a request is carried out, whoever still waits for it, and until it is answered."""
    definition_gone: asyncio.Event = field(default_factory=asyncio.Event)
    """Ends the watches of fleets."""
    _applied: dict[Key, Object] = field(default_factory=dict)
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def of_kind(self, kind: str) -> list[Object]:
        return [each for key, each in self.objects.items() if key[0] == kind]

    def put(self, there: Object) -> Object:
        """An object as somebody else than the operator writes it."""
        meta = there["metadata"]
        return self._store((there["kind"], meta["namespace"], meta["name"]), copy.deepcopy(there))

    def remove(self, kind: str, namespace: str, name: str) -> None:
        """With all that belongs to it."""
        gone = self.objects.pop((kind, namespace, name))
        self._applied.pop((kind, namespace, name), None)
        self._tell(kind, gone)
        for key, each in list(self.objects.items()):
            owners = each["metadata"].get("ownerReferences") or ()
            if key in self.objects and any(owner["uid"] == gone["metadata"]["uid"] for owner in owners):
                self.remove(*key)

    def _store(self, key: Key, new: Object, *, manager: str = "") -> Object:
        before, meta = self.objects.get(key), new["metadata"]
        if before is not None and _without_version(before) == _without_version(new):
            return before
        number = next(self._numbers)
        was: Object = {"uid": f"uid-{number}", "generation": 0} if before is None else before["metadata"]
        changed = before is None or _versioned(before) != _versioned(new)
        meta["uid"], meta["resourceVersion"] = was["uid"], str(number)
        meta["generation"] = was["generation"] + changed
        meta.setdefault("creationTimestamp", text_of(now()))
        if manager:
            meta["managedFields"] = [{"manager": manager, "operation": "Apply", "time": text_of(now())}]
        self.objects[key] = new
        self._tell(key[0], new)
        return new

    def _tell(self, kind: str, changed: Object) -> None:
        for watcher in self.watchers:
            watcher(kind, copy.deepcopy(changed))

    # What requests do

    def answer(self, method: str, place: Place, query: Mapping[str, str], form: str, body: Any) -> Object:
        if method == "GET" and not place.name:
            method = "list"
        if "apply-patch" in form:
            method = "apply"
        self.asked.append(f"{method} {place.kind}/{place.name}")
        for refuse in self.refusing:
            refuse(method, place, body)
        key = (place.kind, place.namespace, place.name)
        match method:
            case "list":
                return self._list(place, query)
            case "apply":
                return self._apply(key, body, dry_run="dryRun" in query)
            case "POST":
                return self._post(key, place.subresource, body)
        if key not in self.objects:
            raise Refusal(404, "NotFound", f"{place.name} not found")
        return self.objects[key] if method == "GET" else self._changed(method, key, form, body)

    def _post(self, key: Key, subresource: str, body: Object) -> Object:
        if subresource == "eviction":
            self.remove(*key)
            return body
        key = (*key[:2], body["metadata"]["name"])
        if key in self.objects:
            raise Refusal(409, "AlreadyExists")
        return self._store(key, body)

    def _changed(self, method: str, key: Key, form: str, body: Any) -> Object:
        match method:
            case "PUT":
                self._expect_version(key, body["metadata"]["resourceVersion"])
                return self._store(key, body)
            case "PATCH":
                return self._store(key, self._patched(key, form, body))
        if body["preconditions"]["uid"] != self.objects[key]["metadata"]["uid"]:
            raise Refusal(409, "Conflict")
        self.remove(*key)
        return {}

    def _list(self, place: Place, query: Mapping[str, str]) -> Object:
        chosen = [each.split("=") for each in query.get("labelSelector", "").split(",") if each]
        fields = [each.split("=") for each in query.get("fieldSelector", "").split(",") if each]
        items = [
            each
            for each in self.of_kind(place.kind)
            if place.namespace in ("", each["metadata"].get("namespace"))
            and all((each["metadata"].get("labels") or {}).get(name) == text for name, text in chosen)
            and all(_text_at(each, path) == text for path, text in fields)
        ]
        return {"kind": f"{place.kind}List", "items": items}

    def _apply(self, key: Key, manifest: Object, *, dry_run: bool) -> Object:
        """As the one manager: what its last manifest had, and this one has not, goes."""
        live = copy.deepcopy(self.objects.get(key, {"metadata": {}}))
        merged: Object = _merged(_pruned(live, self._applied.get(key, {}), manifest), manifest)
        if dry_run:
            return merged
        self._applied[key] = copy.deepcopy(manifest)
        return self._store(key, merged, manager=OPERATOR)

    def _patched(self, key: Key, form: str, body: Any) -> Any:
        live = copy.deepcopy(self.objects[key])
        if "json-patch" not in form:
            if (uid := body.get("metadata", {}).get("uid")) not in (None, live["metadata"]["uid"]):
                raise Refusal(422, "Invalid", f"metadata.uid: {uid} is not that of {key[2]}")
            return _merged(live, body)
        for step in body:
            if step["path"] == "/metadata/resourceVersion":
                self._expect_version(key, step["value"])
            else:
                live[step["path"].removeprefix("/")] = step["value"]
        return live

    def _expect_version(self, key: Key, version: str) -> None:
        if self.objects[key]["metadata"]["resourceVersion"] != version:
            raise Refusal(409, "Conflict", "the object has been modified")


def _text_at(each: Any, path: str) -> str:
    """The value at a path as field selectors have it."""
    for name in path.split("."):
        each = each.get(name) or {}
    return str(each).lower() if isinstance(each, bool) else str(each)


def _versioned(each: Object) -> Object:
    return {name: part for name, part in each.items() if name not in _UNVERSIONED}


def _without_version(each: Object) -> Object:
    of_the_server = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields")
    meta = {name: part for name, part in each["metadata"].items() if name not in of_the_server}
    return {**each, "metadata": meta}


def _pruned(live: Any, before: Any, now: Any) -> Any:
    """`live` without what was applied before and is not applied now."""
    if not (isinstance(live, dict) and isinstance(before, dict) and isinstance(now, dict)):
        return live
    return {
        name: _pruned(part, before.get(name, {}), now.get(name, {}))
        for name, part in live.items()
        if name in now or name not in before
    }


def _merged(under: Any, over: Any) -> Any:
    """RFC 7396; lists of named parts are merged by name, as Kubernetes does."""
    if isinstance(under, list) and isinstance(over, list) and all(isinstance(each, dict) for each in under + over):
        named = {each.get("name"): each for each in over}
        if None not in named and {each.get("name") for each in under} >= named.keys():
            return [_merged(each, named.get(each["name"], {})) for each in under]
    if not (isinstance(under, dict) and isinstance(over, dict)):
        return copy.deepcopy(over)
    both = {name: _merged(under.get(name), part) for name, part in over.items() if part is not None}
    return {**{name: part for name, part in under.items() if name not in over}, **both}


def _place(path: str) -> Place:
    words = path.strip("/").split("/")
    version, rest = ("v1", words[2:]) if words[0] == "api" else ("/".join(words[1:3]), words[3:])
    namespace = ""
    if rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    plural, name, subresource = [*rest, "", ""][:3]
    return Place(KINDS[f"{version}/{plural}"], namespace, name, subresource)


def app_of(server: ApiServer) -> web.Application:
    """An application that answers with its objects."""

    async def answer(request: web.Request) -> web.Response:
        body, place = await request.json() if request.can_read_body else None, _place(request.path)
        before, after = server.delays(request.method, place, body)
        await asyncio.sleep(before)
        try:
            found = server.answer(request.method, place, request.query, request.content_type, body)
        except Refusal as refused:
            return web.json_response(refused.body, status=refused.status)
        finally:
            await asyncio.sleep(after)
        return web.json_response(found)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    return app


@asynccontextmanager
async def api_of(server: ApiServer) -> AsyncIterator[Api]:
    """The operator's access to it."""
    async with serving(app_of(server)) as url:
        api = Api(ApiClient(Configuration(host=url)))
        try:
            yield api
        finally:
            await api.close()
