"""The Kubernetes API as the executor uses it: plain objects in and out, errors that say what was refused.

A thin layer on the official client's transport (`kubernetes.aio`), which keeps credentials fresh. Objects are the
dictionaries that manifests are, so nothing of the generated models is used.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp
import msgspec
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException

from rolloutfleet.http_failures import failure_in_words
from rolloutfleet.spec import KIND
from rolloutfleet_operator.cluster.children.names import API_KINDS, OPERATOR

Object = dict[str, Any]
Body = Mapping[str, Any] | Sequence[Any]
PatchForm = Literal["merge", "strategic-merge", "json"]

TIMEOUT: Final = 30.0
"""Seconds for one request."""
CONNECTIONS: Final = 16
"""At most so many requests at once: a connection with TLS takes a quarter of a megabyte."""

_CLUSTER_SCOPED: Final = frozenset(("Node", "PersistentVolume"))


class ApiUnreachable(Exception):
    """The API server did not answer."""


@dataclass(frozen=True, slots=True)
class Cause:
    field: str
    message: str


class ApiRefused(Exception):
    """The API server refused a request."""

    def __init__(self, status: int, body: str) -> None:
        self.status = status
        self.is_passing = status >= 500 or status in (409, 429)  # the next try may be taken
        try:
            status_object = json.loads(body)
        except ValueError:
            status_object = {}
        status_object = status_object if isinstance(status_object, dict) else {}
        self.reason: str = status_object.get("reason") or ""
        self.message: str = status_object.get("message") or body[:500]
        causes = (status_object.get("details") or {}).get("causes") or ()
        self.causes = tuple(Cause(each.get("field", ""), each.get("message", "")) for each in causes)
        super().__init__(f"{status} {self.reason}: {self.message}")


@contextmanager
def unless_forbidden() -> Iterator[None]:
    """Leave the block where something may not be read, as by an operator of one namespace."""
    try:
        yield
    except ApiRefused as refused:
        if refused.status != HTTPStatus.FORBIDDEN:
            raise


class Api:
    """One API server, with the credentials of this process."""

    def __init__(self, client: ApiClient) -> None:
        self._client = client

    async def close(self) -> None:
        await self._client.close()

    async def apply(self, manifest: Object, *, dry_run: bool = False) -> Object:
        """Server-side apply under our one field manager; what others set of our fields is taken back."""
        meta = manifest["metadata"]
        path = _path(manifest["kind"], meta.get("namespace"), meta["name"])
        query = {"fieldManager": OPERATOR, "force": "true"} | ({"dryRun": "All"} if dry_run else {})
        return await self._call("PATCH", path, query, manifest, "application/apply-patch+yaml")

    async def get(self, kind: str, namespace: str | None, name: str) -> Object | None:
        """None where there is none of that name."""
        try:
            return await self._call("GET", _path(kind, namespace, name))
        except ApiRefused as refused:
            if refused.status == 404:
                return None
            raise

    async def list(
        self, kind: str, namespace: str | None, *, labels: str = "", fields: str = "", limit: int = 0
    ) -> list[Object]:
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(limit or "")}
        found = await self._call("GET", _path(kind, namespace), {name: text for name, text in query.items() if text})
        return [{"apiVersion": API_KINDS[kind][0], "kind": kind, **item} for item in found["items"]]

    async def create(
        self, kind: str, namespace: str, manifest: Object, *, name: str = "", subresource: str = ""
    ) -> Object:
        return await self._call("POST", _path(kind, namespace, name, subresource), {}, manifest)

    async def replace(self, manifest: Object) -> Object:
        """Refused with 409 where it is no longer what was read."""
        meta = manifest["metadata"]
        return await self._call("PUT", _path(manifest["kind"], meta.get("namespace"), meta["name"]), {}, manifest)

    async def patch(
        self, kind: str, namespace: str, name: str, patch: Body, *, form: PatchForm = "merge", subresource: str = ""
    ) -> Object:
        """By JSON Patch it is refused with 409 where a resourceVersion is put in that is not the newest."""
        path = _path(kind, namespace, name, subresource)
        content_type = f"application/{form}-patch+json"
        return await self._call("PATCH", path, {"fieldManager": OPERATOR}, patch, content_type)

    async def write_status(self, body: Object, status: Mapping[str, Any]) -> Object | None:
        """Of a fleet, and only over what was read: None where the object has changed since, and nothing was written.

        It is replaced as a whole, and not by server-side apply: that refuses a status with any field which the
        definition in the cluster does not have yet, so that an operator newer than the definition could say nothing,
        nor do anything. Written like this, such a field is left out by the API server.
        """
        meta = body["metadata"]
        steps = [
            {"op": "replace", "path": "/metadata/resourceVersion", "value": meta["resourceVersion"]},
            {"op": "add", "path": "/status", "value": status},
        ]
        try:
            return await self.patch(KIND, meta["namespace"], meta["name"], steps, form="json", subresource="status")
        except ApiRefused as refused:
            if refused.status in (404, 409):
                return None
            raise

    async def delete(self, kind: str, namespace: str, name: str, *, uid: str) -> None:
        """Delete the object of that uid; nothing happens where it is gone."""
        body = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        try:
            await self._call("DELETE", _path(kind, namespace, name), {}, body)
        except ApiRefused as refused:
            if refused.status not in (404, 409):
                raise

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        content_type: str = "application/json",
    ) -> Object:
        headers = {"Accept": "application/json"} | ({"Content-Type": content_type} if body is not None else {})
        try:
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            response = await self._client.call_api(*request, _request_timeout=TIMEOUT)
            content = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise ApiUnreachable(failure_in_words(error)) from None
        if not 200 <= response.status < 300:
            raise ApiRefused(response.status, content.decode(errors="replace"))
        return msgspec.json.decode(content, type=Object)


def _path(kind: str, namespace: str | None, name: str = "", subresource: str = "") -> str:
    version, plural = API_KINDS[kind]
    root = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    within = f"/namespaces/{namespace}" if namespace and kind not in _CLUSTER_SCOPED else ""
    return "/".join((f"{root}{within}/{plural}", *filter(None, (quote(name, safe=""), subresource))))


async def connect(*, connections: int = CONNECTIONS) -> Api:
    """By the pod's service account, else by the kubeconfig. Raises ApiUnreachable where there is neither."""
    configuration = Configuration()
    try:
        config.load_incluster_config(client_configuration=configuration)
    except ConfigException:
        try:
            await config.load_kube_config(client_configuration=configuration)
        except (ConfigException, OSError) as error:
            raise ApiUnreachable(f"no cluster: no service account in this pod, and the kubeconfig: {error}") from None
    configuration.connection_pool_maxsize = connections
    # Else the environment's proxies, and the user's .netrc, would be looked up for every request.
    configuration.proxy = configuration.proxy or _proxy_of_the_environment(configuration.host)
    configuration.client_session_kwargs = {"trust_env": False}
    return Api(ApiClient(configuration))


def _proxy_of_the_environment(url: str) -> str | None:
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    return getproxies().get(parts.scheme)
