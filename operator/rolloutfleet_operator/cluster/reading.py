"""Everything that a pass reads of one fleet.

Most of it is watched (`handlers`): objects of a kind are listed again after an event about one of them.
"""

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import filterfalse
from typing import Any, Final, Self

import msgspec
from pydantic import ValidationError

from rolloutfleet.explain import explain, path_text, without_unknown
from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.cluster import observe
from rolloutfleet_operator.cluster.api import Api, Object, unless_forbidden
from rolloutfleet_operator.cluster.apply import Id, identity, owned
from rolloutfleet_operator.cluster.children.all import KINDS
from rolloutfleet_operator.cluster.children.names import COMPONENT, FLEET_LABEL, Component, Fleet
from rolloutfleet_operator.cluster.volumes import CordonedNodes, Volumes
from rolloutfleet_operator.cluster.warning_events import WarningEvents
from rolloutfleet_operator.policy.observed import ordinal_of

WATCHED: Final = frozenset((*KINDS, "Pod", "PersistentVolumeClaim"))
"""Kinds of which events tell, besides the fleets themselves. Secrets are never watched."""

Found = dict[str, list[Object]]
"""The objects that carry a fleet's label, by kind."""


class SpecInvalid(Exception):
    """The fleet's spec can't be used; the message names each field."""


def understood(body: Mapping[str, Any]) -> tuple[FleetSpec, tuple[str, ...]]:
    """The spec, and the paths of the fields that this release does not know. Raises SpecInvalid.

    The API server has held the spec to the CRD and filled in its defaults. That may be a newer release's, so a field
    that is not known here is not an error of the fleet's: it means nothing until this operator is upgraded. A choice
    that is not known stands for the one that disturbs least: the default, but for `updatePolicy`.
    """
    known, unknown = without_unknown(body.get("spec") or {}, FleetSpec, choices=True)
    if ("updatePolicy",) in unknown:
        known["updatePolicy"] = "OnRequest"
    try:
        spec = FleetSpec.model_validate(known)
    except ValidationError as error:
        raise SpecInvalid("; ".join(f"spec.{line}" for line in explain(error, FleetSpec))) from None
    return spec, tuple(path_text(("spec", *where)) for where in unknown)


def status_of(body: Mapping[str, Any]) -> FleetStatus:
    """The status as it stands there, perhaps another release's: without those of its parts that can't be read."""
    written = dict(body.get("status") or {})
    try:
        return FleetStatus.model_validate(written)
    except ValidationError as error:
        unreadable = {problem["loc"][0] for problem in error.errors()}
        return FleetStatus.model_validate({name: part for name, part in written.items() if name not in unreadable})


def fleet_of(body: Mapping[str, Any]) -> Fleet:
    """Raises SpecInvalid."""
    meta, (spec, unknown) = body["metadata"], understood(body)
    return Fleet(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        generation=meta["generation"],
        spec=spec,
        unknown=unknown,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetObjects:
    """What there is of a fleet."""

    children: Mapping[Id, Object]
    proxies: tuple[Object, ...]
    gateways: tuple[Object, ...]
    managed: tuple[Object, ...]
    """Pods of engines that the fleet itself runs."""
    claims: tuple[Object, ...]

    # Read in every pass, as no event tells of them

    engines: tuple[Object, ...] | None = None
    """Pods of engines, whoever runs them; None where they are named by address, or could not be listed."""
    secret: Object | None = None
    """The one with the admin keys."""
    warnings: observe.Warnings = field(default_factory=observe.Warnings)
    lost_nodes: frozenset[str] = frozenset()
    node_local: bool = False
    """Volumes of proxies can be used on one node alone."""
    cordoned_nodes: frozenset[str] = frozenset()
    """Looked for where that is so."""

    @property
    def pods(self) -> tuple[Object, ...]:
        """Of all components."""
        return (*self.proxies, *self.gateways, *self.managed)

    def child(self, kind: str, name: str) -> Object | None:
        return self.children.get((kind, name))


async def find(api: Api, fleet: Fleet, kinds: Iterable[str]) -> Found:
    """Raises ApiUnreachable, and ApiRefused where something may not be read."""
    chosen, kinds = f"{FLEET_LABEL}={fleet.name}", sorted(kinds)
    lists = await asyncio.gather(*(api.list(kind, fleet.namespace, labels=chosen) for kind in kinds))
    return dict(zip(kinds, lists, strict=True))


def _sorted(fleet: Fleet, found: Found) -> FleetObjects:
    """What was found of all kinds that are watched, sorted; without what is not."""
    children = {identity(each): each for kind in KINDS for each in found[kind] if owned(each, fleet.uid)}
    ours, stateful_set = found["Pod"], children.get(("StatefulSet", fleet.proxies))
    # An earlier fleet of that name may have left pods that are still ending.
    uid = "" if stateful_set is None else stateful_set["metadata"]["uid"]
    return FleetObjects(
        children=children,
        proxies=tuple(pod for pod in _of(ours, Component.PROXY) if owned(pod, uid)),
        # A Deployment has another pod in the place of one that has ended.
        gateways=tuple(filterfalse(observe.has_ended, _of(ours, Component.GATEWAY))),
        managed=tuple(filterfalse(observe.has_ended, _of(ours, Component.ENGINE))),
        claims=tuple(
            each for each in found["PersistentVolumeClaim"] if each["metadata"]["name"].startswith(fleet.claims)
        ),
    )


async def read_more(
    api: Api,
    warning_events: WarningEvents,
    volumes: Volumes,
    cordoned_nodes: CordonedNodes,
    fleet: Fleet,
    found: Found,
) -> FleetObjects:
    """What was found, and what is not watched. Raises as `find`."""
    there = _sorted(fleet, found)
    engines, secret, warnings, lost_nodes, (node_local, cordoned) = await asyncio.gather(
        _engines(api, fleet, there),
        api.get("Secret", fleet.namespace, fleet.keys),
        _warnings(warning_events, fleet, there),
        _lost_nodes(api, there.pods),
        _node_local(volumes, cordoned_nodes, fleet, there),
    )
    return replace(
        there,
        engines=engines,
        secret=secret,
        warnings=warnings,
        lost_nodes=lost_nodes,
        node_local=node_local,
        cordoned_nodes=cordoned,
    )


def _of(pods: Iterable[Object], component: Component) -> tuple[Object, ...]:
    return tuple(pod for pod in pods if pod["metadata"]["labels"].get(COMPONENT) == component)


async def _engines(api: Api, fleet: Fleet, there: FleetObjects) -> tuple[Object, ...] | None:
    if fleet.spec.engine is not None:
        return there.managed
    source = fleet.spec.gateway.engines
    if source is None or source.selector is None:
        return None
    labels = ",".join(f"{name}={value}" for name, value in sorted(source.selector.items()))
    return tuple(await api.list("Pod", fleet.namespace, labels=labels))


async def _warnings(warning_events: WarningEvents, fleet: Fleet, there: FleetObjects) -> observe.Warnings:
    """Events are read only where something is not well, for the reason."""
    ready = all(map(observe.is_ready, there.pods))
    bound = all(each.get("status", {}).get("phase") == "Bound" for each in there.claims)
    workload = there.child("StatefulSet", fleet.proxies)
    complete = workload is None or workload.get("status", {}).get("replicas", 0) >= workload["spec"]["replicas"]
    grown = all(map(_grown, there.claims))
    if ready and bound and complete and grown:
        return observe.Warnings()
    return await warning_events.of(fleet.namespace)


def _grown(claim: Object) -> bool:
    asked = claim["spec"]["resources"]["requests"].get("storage")
    has = claim.get("status", {}).get("capacity", {}).get("storage")
    return bool(asked == has)


async def _lost_nodes(api: Api, pods: Iterable[Object]) -> frozenset[str]:
    """Nodes of pods that are not ready; nothing where nodes may not be read, as by an operator of one namespace."""
    names = {pod["spec"]["nodeName"] for pod in pods if pod["spec"].get("nodeName") and not observe.is_ready(pod)}
    with unless_forbidden():
        return frozenset([name for name in names if observe.lost_node(await api.get("Node", None, name))])
    return frozenset()


async def _node_local(
    volumes: Volumes, cordoned_nodes: CordonedNodes, fleet: Fleet, there: FleetObjects
) -> tuple[bool, frozenset[str]]:
    """True where volumes are node-local; and the cordoned nodes, which matter only then."""
    node_local, wanted = fleet.spec.proxies.storage.node_local, fleet.spec.proxies.replicas
    if node_local is None:
        used = (claim for claim in there.claims if ordinal_of(claim["metadata"]["name"]) < wanted)
        node_local = await volumes.are_node_local(used)
    return node_local, await cordoned_nodes.names() if node_local and there.proxies else frozenset()


_QUICKLY: Final = 1
"""The level of compression: the objects of a fleet repeat each other, so more gives little."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a pass read and left, kept for the next one.

    It is packed: as Python objects it takes some hundred kilobytes a fleet, and an operator may have hundreds of them.
    """

    since: float
    """When all of it was read; parts may be newer."""
    packed: bytes

    @classmethod
    def of(cls, body: Object, found: Found, *, since: float) -> Self:
        """The fleet, and what is watched of it."""
        return cls(since, zlib.compress(msgspec.msgpack.encode((body, found)), _QUICKLY))

    def unpacked(self) -> tuple[Object, Found]:
        body, found = msgspec.msgpack.decode(zlib.decompress(self.packed), type=tuple[Object, dict[str, list[Object]]])
        return body, found
