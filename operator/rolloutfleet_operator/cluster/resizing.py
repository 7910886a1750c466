"""A raised memory budget, brought to running pods: their memory grows in place, and nothing is restarted.

The limit of a proxy follows from its budget unless it is set. A pod of an earlier budget would else be killed by the
kernel before its restart on memory is due. Kubernetes resizes pods in place since 1.33; where it does not, the pod has
the new limit from its next start on. Memory is never taken away from a running pod.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rolloutfleet.units import parse_quantity
from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object
from rolloutfleet_operator.cluster.children.names import TEMPLATE_HASH
from rolloutfleet_operator.cluster.children.proxies import CONTAINER
from rolloutfleet_operator.cluster.logs import logger


def grown(pod: Object, template: Object) -> dict[str, Any] | None:
    """The memory that a pod should have now; None where it has it, or is to be replaced anyway."""
    if "deletionTimestamp" in pod["metadata"] or _hash(pod) != _hash(template):
        return None
    has, wanted = _resources(pod), _resources(template)
    try:
        more = parse_quantity(wanted["limits"]["memory"]) > parse_quantity(has["limits"]["memory"])
    except (KeyError, ValueError):
        return None
    if not more:
        return None
    return {name: {"memory": wanted[name]["memory"]} for name in ("limits", "requests") if "memory" in wanted[name]}


@dataclass(slots=True)
class Resizer:
    api: Api
    _refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What was refused for which pod, so that it is not asked for at every pass."""

    async def grow(self, namespace: str, pods: Iterable[Object], template: Object) -> None:
        """Raises ApiUnreachable."""
        for pod in pods:
            meta, memory = pod["metadata"], grown(pod, template)
            if memory is None or self._refused.get(meta["uid"]) == memory:
                continue
            try:
                body = {"spec": {"containers": [{"name": CONTAINER, "resources": memory}]}}
                await self.api.patch("Pod", namespace, meta["name"], body, form="strategic-merge", subresource="resize")
            except ApiRefused as refused:
                self._refused[meta["uid"]] = memory
                logger.info("%s/%s keeps its memory limit until its next start: %s", namespace, meta["name"], refused)


def _hash(of: Object) -> Any:
    return (of["metadata"].get("annotations") or {}).get(TEMPLATE_HASH)


def _resources(of: Object) -> dict[str, Any]:
    container: Object = next((each for each in of["spec"]["containers"] if each["name"] == CONTAINER), {})
    found = container.get("resources") or {}
    return {"limits": found.get("limits") or {}, "requests": found.get("requests") or {}}
