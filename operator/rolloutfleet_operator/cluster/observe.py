"""Converts objects of the API server to the types of `policy.observed`. Pure: nothing is requested here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from rolloutfleet.units import parse_quantity
from rolloutfleet.wire import Drain
from rolloutfleet_operator.cluster.api import Object
from rolloutfleet_operator.cluster.apply import carries
from rolloutfleet_operator.cluster.children import engines as engine_children
from rolloutfleet_operator.cluster.children import gateway as gateway_children
from rolloutfleet_operator.cluster.children import proxies as proxy_children
from rolloutfleet_operator.cluster.children import templates
from rolloutfleet_operator.cluster.children.names import TEMPLATE_HASH
from rolloutfleet_operator.policy.observed import (
    GROUP,
    NO_RUN,
    RESTART_NOTE,
    ObservedClaim,
    ObservedContainer,
    ObservedDeployment,
    ObservedOtherPod,
    ObservedPod,
    ObservedStatefulSet,
    ProxyStats,
    Run,
    ordinal_of,
    seconds_of,
)

_WARNINGS_ARE_NEWS: Final = 900.0
"""Seconds after which a warning that was not repeated says nothing of how it is now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """What was learned by asking a pod's proxy."""

    stats: ProxyStats | None = None
    key_refused: bool = False
    unanswered: int = 0
    again_at: float = 0.0
    """When to ask it again, by the clock of the event loop: one that is silent takes others' time."""
    drain: Drain | None = None
    """The one that its newest answer told of, unless that is over."""
    run: Run = NO_RUN


NOT_POLLED: Final = Polled()


@dataclass(frozen=True, slots=True)
class Warnings:
    """The newest warning Event for each object, by its uid."""

    by_uid: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def of(self, uid: str, *, now: float) -> str:
        """Its message; empty where there is none, or where it is old."""
        event = self.by_uid.get(uid)
        if event is None or now - _event_time(event) > _WARNINGS_ARE_NEWS:
            return ""
        return f"{event.get('reason', '')}: {event.get('message', '')}".strip(": ")


def warnings(events: Iterable[Object]) -> Warnings:
    oldest_first = sorted((event for event in events if event.get("type") == "Warning"), key=_event_time)
    return Warnings({event["involvedObject"].get("uid", ""): event for event in oldest_first})


def _event_time(event: Mapping[str, Any]) -> float:
    series = (event.get("series") or {}).get("lastObservedTime")
    text = series or event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp")
    return seconds_of(text or "")


def proxy_pods(
    pods: Iterable[Object],
    polled: Mapping[str, Polled],
    lost_nodes: frozenset[str],
    cordoned_nodes: frozenset[str],
) -> tuple[ObservedPod, ...]:
    """The pods of the StatefulSet by ordinal; `polled` is by uid."""
    found = (
        _proxy_pod(pod, polled.get(pod["metadata"]["uid"], NOT_POLLED), lost_nodes, cordoned_nodes) for pod in pods
    )
    return tuple(sorted(found, key=lambda pod: pod.ordinal))


def _proxy_pod(pod: Object, polled: Polled, lost_nodes: frozenset[str], cordoned_nodes: frozenset[str]) -> ObservedPod:
    meta, node = pod["metadata"], pod.get("spec", {}).get("nodeName")
    annotations = meta.get("annotations") or {}
    return ObservedPod(
        **_of_any_pod(pod, proxy_children.CONTAINER, lost_nodes),
        uid=meta["uid"],
        ordinal=ordinal_of(meta["name"]),
        template_hash=annotations.get(TEMPLATE_HASH, ""),
        restarted_at=annotations.get(_RESTARTED_AT, ""),
        notes=_notes(annotations, meta.get("labels") or {}),
        stats=polled.stats,
        key_refused=polled.key_refused,
        unanswered=polled.unanswered,
        in_drain=polled.drain is not None,
        run=polled.run,
        cordoned_node=node if node in cordoned_nodes else None,
    )


def _of_any_pod(pod: Object, main: str, lost_nodes: frozenset[str]) -> dict[str, Any]:
    """What is seen of pods of every component; `main` is the name of the main container."""
    status = pod.get("status", {})
    return {
        "name": pod["metadata"]["name"],
        "created": seconds_of(pod["metadata"]["creationTimestamp"]),
        "ready": _holds(status, "Ready"),
        "ready_since": _time(_condition(status, "Ready").get("lastTransitionTime")),
        "terminating_since": terminating_since(pod),
        "grace": grace_of(pod),
        "node_lost": pod.get("spec", {}).get("nodeName") in lost_nodes or given_up(status),
        "unschedulable": unschedulable(status),
        "container": container_seen(pod, main),
    }


def terminating_since(pod: Object) -> float | None:
    """When it was told to end: the API server writes when that has to be done by."""
    ends = pod["metadata"].get("deletionTimestamp")
    if ends is None:
        return None
    return seconds_of(ends) - float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)


def grace_of(pod: Object) -> float:
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    if given is None:
        given = pod.get("spec", {}).get("terminationGracePeriodSeconds")
    return float(30 if given is None else given)


def unschedulable(status: Mapping[str, Any]) -> str | None:
    scheduled = _condition(status, "PodScheduled")
    return scheduled.get("message") or None if scheduled.get("status") == "False" else None


def container_seen(pod: Object, main: str) -> ObservedContainer:
    """The main container; another where that one is in trouble and the main one is not."""
    status = pod.get("status", {})
    everyone = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    chosen = next((each for each in everyone if each["name"] == main), None)
    if chosen is None or not _in_trouble(chosen):
        chosen = next(filter(_in_trouble, everyone), chosen)
    return ObservedContainer() if chosen is None else _container(chosen)


def _in_trouble(container: Mapping[str, Any]) -> bool:
    waiting = container.get("state", {}).get("waiting") or {}
    return waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing")


def _container(status: Mapping[str, Any]) -> ObservedContainer:
    state, last = status.get("state", {}), status.get("lastState", {}).get("terminated") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or last
    return ObservedContainer(
        waiting=waiting.get("reason"),
        message=waiting.get("message") or "",
        running="running" in state,
        started=bool(status.get("started")),
        restarts=int(status.get("restartCount", 0)),
        last_end=ended.get("reason"),
        last_exit=ended.get("exitCode"),
        last_words=ended.get("message") or "",
        image=status.get("image") or "",
        last_ended_at=_time(ended.get("finishedAt")),
    )


def _notes(annotations: Mapping[str, str], labels: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in {**annotations, **labels}.items() if name.startswith(f"{GROUP}/")}


def claims(objects: Iterable[Object], asked: int | None, events: Warnings, *, now: float) -> tuple[ObservedClaim, ...]:
    """The claims of a StatefulSet's pods; `asked` is how large they should be."""
    found = (_claim(each, asked, events, now) for each in objects)
    return tuple(sorted(found, key=lambda claim: claim.ordinal))


_PROVISIONERS: Final = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
"""Annotations by which the controller of claims asks a provisioner for a volume."""


def _claim(claim: Object, asked: int | None, events: Warnings, now: float) -> ObservedClaim:
    meta, status = claim["metadata"], claim.get("status", {})
    size = status.get("capacity", {}).get("storage")
    has = parse_quantity(size) if size is not None else None
    annotations = meta.get("annotations") or {}
    bound, growing = status.get("phase") == "Bound", has is not None and asked is not None and has < asked
    return ObservedClaim(
        name=meta["name"],
        ordinal=ordinal_of(meta["name"]),
        bound=bound,
        created=seconds_of(meta["creationTimestamp"]),
        provisioner=next(filter(None, map(annotations.get, _PROVISIONERS)), None),
        message=events.of(meta["uid"], now=now) if growing or not bound else "",
        growing=growing,
    )


_RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"
"""Annotation that `kubectl rollout restart` puts into a pod template."""


def workload(stateful_set: Object | None, events: Warnings, *, now: float) -> ObservedStatefulSet | None:
    if stateful_set is None:
        return None
    meta, spec = stateful_set["metadata"], stateful_set["spec"]
    annotations = spec["template"]["metadata"].get("annotations") or {}
    status = stateful_set.get("status", {})
    missing = status.get("replicas", 0) < spec["replicas"]
    return ObservedStatefulSet(
        replicas=spec["replicas"],
        template_hash=annotations.get(TEMPLATE_HASH, ""),
        restart_id=annotations.get(RESTART_NOTE),
        restarted_at=annotations.get(_RESTARTED_AT, ""),
        current=status.get("observedGeneration") == meta["generation"],
        failed_create=events.of(meta["uid"], now=now) if missing else "",
    )


def deployment(
    found: Object | None, pods: Sequence[Object], lost: frozenset[str], *, wanted: Object | None
) -> ObservedDeployment | None:
    """A Deployment of ours and those pods; `wanted` is what the spec comes to, None where that can't be made."""
    if found is None:
        return None
    status = found.get("status", {})
    failed = _holds(status, "ReplicaFailure")
    return ObservedDeployment(
        replicas=found["spec"]["replicas"],
        there=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        current=status.get("observedGeneration") == found["metadata"]["generation"],
        as_asked=wanted is not None and (carries(found, wanted) or carries(found, templates.kept(wanted, found))),
        outdated=wanted is not None and templates.is_outdated(found, wanted),
        part_changed=wanted is not None and templates.part_differs(found, wanted),
        key_changed=wanted is not None and templates.control_key_of(found) != templates.control_key_of(wanted),
        updating_since=_time(templates.note(found, templates.UPDATING_SINCE)),
        failed_create=_condition(status, "ReplicaFailure").get("message", "") if failed else "",
        pods=tuple(_other_pod(pod, lost) for pod in pods),
    )


def _other_pod(pod: Object, lost: frozenset[str]) -> ObservedOtherPod:
    names = [each["name"] for each in pod["spec"]["containers"]]
    ours = (name for name in (engine_children.CONTAINER, gateway_children.CONTAINER) if name in names)
    return ObservedOtherPod(**_of_any_pod(pod, next(ours, names[0]), lost))


def engine_urls(pods: Iterable[Object], port: int) -> tuple[str, ...]:
    """The engines that are there: their pods have an address and neither end nor have ended."""
    alive = (
        pod
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"] and pod.get("status", {}).get("podIP") and not has_ended(pod)
    )
    return tuple(sorted(f"http://{_host(pod['status']['podIP'])}:{port}" for pod in alive))


def ready_engine_urls(pods: Iterable[Object], port: int) -> tuple[str, ...]:
    """Of these, the ones whose pods are ready."""
    return engine_urls(filter(is_ready, pods), port)


def has_ended(pod: Object) -> bool:
    """True where it will never run again, though it is still there: evicted, or ended with its node."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def _host(address: str) -> str:
    return f"[{address}]" if ":" in address else address


def address_of(pod: Object, port: int) -> str | None:
    """Where a pod's server is reached; None while it can't be."""
    address = pod.get("status", {}).get("podIP")
    running = pod.get("status", {}).get("phase") == "Running"
    return f"http://{_host(address)}:{port}" if address and running else None


def lost_node(node: Object | None) -> bool:
    """Gone, or not heard of."""
    return node is None or not is_ready(node)


_OF_ONE_NODE: Final = ("hostname", "node", "nodename", "nodeid")
"""Last parts of node labels whose values no two nodes share: `kubernetes.io/hostname`, and those of drivers."""


def is_node_local(volume: Object) -> bool:
    """True of a PersistentVolume whose node affinity allows one node alone."""
    required = (volume["spec"].get("nodeAffinity") or {}).get("required") or {}
    terms = [term.get("matchExpressions") or () for term in required.get("nodeSelectorTerms") or ()]
    return len(terms) == 1 and any(
        each["key"].rpartition("/")[2] in _OF_ONE_NODE and each["operator"] == "In" and len(each["values"]) == 1
        for each in terms[0]
    )


def is_ready(found: Object) -> bool:
    """A pod, or a node."""
    return _holds(found.get("status", {}), "Ready")


def given_up(status: Mapping[str, Any]) -> bool:
    """Whether a pod's node is lost, by the pod's own status: what an operator that may not read nodes goes by.

    Kubernetes' node controller then sets Ready to False and touches nothing else. A kubelet always says why a pod is
    not Ready, and finds its containers unready as well, or a readiness gate.
    """
    ready = _condition(status, "Ready")
    return ready.get("status") == "False" and not ready.get("reason") and _holds(status, "ContainersReady")


def _condition(status: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    return next((each for each in status.get("conditions") or () if each["type"] == kind), {})


def _holds(status: Mapping[str, Any], kind: str) -> bool:
    return bool(_condition(status, kind).get("status") == "True")


def _time(text: str | None) -> float | None:
    return None if text is None else seconds_of(text)
