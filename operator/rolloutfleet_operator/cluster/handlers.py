"""What kopf watches. Handlers only wake a fleet's task: kopf keeps no state here, and writes nothing to any object.

`on.event` alone is used: daemons, timers and handlers of changes would put a finalizer or annotations on the fleet.
"""

import asyncio
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

import kopf

from rolloutfleet.spec import KIND
from rolloutfleet_operator.cluster.children.names import API_KINDS, FLEET_LABEL, MANAGED_BY, OPERATOR
from rolloutfleet_operator.cluster.fleets import BACKOFF, Fleets
from rolloutfleet_operator.cluster.reading import WATCHED

_KINDS: Final = WATCHED | {"EndpointSlice"}
"""Slices have their Service's labels, and tell of engines that others run, whose pods are not watched."""

SILENT_WATCH: Final = 120
"""Seconds after which a watch that says nothing is begun anew."""
LONGEST_END: Final = 25.0
"""Seconds that the operator may take to end, once it has begun to let go of its Lease and all else; then kopf has the
kernel kill it. Kubernetes does that 30 s after it told the pod to stop."""


def registry(fleets: Fleets, stopping: asyncio.Event) -> kopf.OperatorRegistry:
    """`stopping` is set once kopf has begun to end, for whatever reason."""
    made = kopf.OperatorRegistry()

    async def fleet(namespace: str | None, name: str | None, **_: Any) -> None:
        fleets.wake(namespace or "", name or "", KIND)

    async def child(kind: str, namespace: str | None, labels: kopf.Labels, meta: kopf.Meta, **_: Any) -> None:
        for name in {labels.get(FLEET_LABEL) or "", *_owners(meta)} - {""}:
            fleets.wake(namespace or "", name, kind)

    async def cleanup(**_: Any) -> None:
        stopping.set()

    kopf.on.login(registry=made)(_login)
    kopf.on.cleanup(registry=made)(cleanup)
    group, version = API_KINDS[KIND][0].split("/")
    kopf.on.event(group, version, API_KINDS[KIND][1], registry=made)(fleet)
    for kind in sorted(_KINDS):
        group, _, version = API_KINDS[kind][0].rpartition("/")
        kopf.on.event(group, version, API_KINDS[kind][1], registry=made, id=f"child {kind}")(partial(child, kind))
    return made


def _owners(meta: kopf.Meta) -> list[str]:
    """Fleets that it belongs to, whatever became of its labels."""
    return [each.get("name", "") for each in meta.get("ownerReferences") or () if each.get("kind") == KIND]


def _login(**given: Any) -> kopf.ConnectionInfo | None:
    """The same credentials as the executor's: the pod's service account, else the kubeconfig."""
    return kopf.login_with_service_account(**given) or kopf.login_with_kubeconfig(**given)


class _Pauses:
    """Seconds between tries of one request, without end: after a last one kopf would end the operator, which a right to
    watch one kind is not worth."""

    def __iter__(self) -> Iterator[float]:
        return map(BACKOFF.after, itertools.count(1))


def settings() -> kopf.OperatorSettings:
    made = kopf.OperatorSettings()
    # Looking for new namespaces and kinds needs rights over the whole cluster, and none are waited for.
    made.scanning.disabled = True
    made.posting.enabled = False
    made.peering.standalone = True
    made.networking.request_timeout = 30
    made.networking.connect_timeout = 5
    made.networking.error_backoffs = _Pauses()
    made.watching.server_timeout = SILENT_WATCH
    made.watching.client_timeout = SILENT_WATCH + 10
    made.process.ultimate_exiting_timeout = LONGEST_END
    for kind in _KINDS:
        group, _, version = API_KINDS[kind][0].rpartition("/")
        made.watching.label_selectors[group, version, API_KINDS[kind][1]] = f"{MANAGED_BY}={OPERATOR}"
    return made
