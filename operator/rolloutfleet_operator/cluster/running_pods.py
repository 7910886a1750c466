"""What changes for running pods without a restart: settings and keys, a raised memory budget, larger volumes.

The kubelet looks at mounted ConfigMaps and Secrets about once a minute; a change of a pod's annotations makes it look
now. So a pod whose proxy has not taken what is written gets one.

The memory limit of a proxy follows from its budget unless it is set. A pod of an earlier budget would else be killed by
the kernel before its restart on memory is due. Kubernetes resizes pods in place since 1.33; where it does not, the pod
has the new limit from its next start on. Memory is never taken away from a running pod.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutfleet.units import format_quantity, parse_quantity
from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import GENERATION, TEMPLATE_HASH
from rolloutfleet_operator.cluster.children.proxies import CONTAINER
from rolloutfleet_operator.cluster.logs import logger
from rolloutfleet_operator.policy.actions import PatchMetadata
from rolloutfleet_operator.policy.observed import GROUP, ObservedPod

NOTE: Final = f"{GROUP}/refreshed"
"""On pods: the hash of what they were last told to look at."""


def refreshes(
    pods: Sequence[ObservedPod], config_map: Object | None, secret: Object | None, *, rotating: bool
) -> Iterator[PatchMetadata]:
    """A mark for each pod that should look. Both are as they were read: what was only just written is for next time."""
    if config_map is None:
        return
    newest = int((config_map["metadata"].get("annotations") or {}).get(GENERATION, 0))
    for pod in pods:
        keys = rotating or pod.key_refused
        version = secret["metadata"]["resourceVersion"] if keys and secret is not None else ""
        mark = content_hash([config_map.get("data"), version])
        answered = pod.stats is not None or pod.key_refused
        behind = keys or (pod.stats is not None and pod.stats.settings_generation < newest)
        if answered and behind and pod.terminating_since is None and pod.notes.get(NOTE) != mark:
            yield PatchMetadata(pod=pod.name, uid=pod.uid, annotations={NOTE: mark})


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
    """Of one fleet."""

    api: Api
    ungrown: dict[str, str] = field(default_factory=dict)
    """Why claims did not grow in the newest pass, by name."""
    _refused: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What was refused for which pod, so that it is not asked for at every pass."""

    async def grow_memory(self, namespace: str, pods: Iterable[Object], template: Object) -> None:
        """Raises ApiUnreachable."""
        for pod in pods:
            meta, memory = pod["metadata"], grown(pod, template)
            if memory is None or self._refused.get(meta["uid"]) == memory:
                continue
            body = {"spec": {"containers": [{"name": CONTAINER, "resources": memory}]}}
            try:
                await self.api.patch("Pod", namespace, meta["name"], body, form="strategic-merge", subresource="resize")
            except ApiRefused as refused:
                self._refused[meta["uid"]] = memory
                logger.info("%s/%s keeps its memory limit until its next start: %s", namespace, meta["name"], refused)

    async def grow_claims(self, namespace: str, claims: Iterable[Object], capacity: int | None) -> None:
        """Let claims ask for more, where the spec does; the volume grows under the running pod."""
        self.ungrown = {}
        for claim in claims:
            meta, requests = claim["metadata"], claim["spec"]["resources"]["requests"]
            if capacity is None or parse_quantity(requests["storage"]) >= capacity:
                continue
            larger = {"resources": {"requests": {"storage": format_quantity(capacity)}}}
            patch = {"metadata": {"uid": meta["uid"]}, "spec": larger}
            try:
                await self.api.patch("PersistentVolumeClaim", namespace, meta["name"], patch)
            except ApiRefused as refused:
                self.ungrown[meta["name"]] = refused.message


def _hash(of: Object) -> Any:
    return (of["metadata"].get("annotations") or {}).get(TEMPLATE_HASH)


def _resources(of: Object) -> dict[str, Any]:
    container: Object = next((each for each in of["spec"]["containers"] if each["name"] == CONTAINER), {})
    found = container.get("resources") or {}
    return {"limits": found.get("limits") or {}, "requests": found.get("requests") or {}}
