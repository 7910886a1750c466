"""Executes the decided actions. What fails now is decided again in the next pass, so nothing here waits or retries."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rolloutfleet.spec import API_VERSION, KIND
from rolloutfleet_operator.cluster import failpoints
from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import OPERATOR, Fleet
from rolloutfleet_operator.cluster.gateway_client import GatewayClient
from rolloutfleet_operator.cluster.logs import logger
from rolloutfleet_operator.cluster.proxy_client import ProxyClient
from rolloutfleet_operator.policy import actions
from rolloutfleet_operator.policy.observed import text_of
from rolloutfleet_operator.policy.reasons import EventReason

LONGEST_MESSAGE: Final = 1024
"""Characters of an Event's message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoints:
    """Where the pods of a fleet are, and the keys they take."""

    pods: Mapping[str, Object]
    """By name."""
    proxies: Mapping[str, tuple[str, str]]
    """Address and admin key by pod."""
    gateways: Sequence[str]
    gateway_key: str | None = None
    """Of the gateways' control plane."""
    engine_key: str | None = None


@dataclass(frozen=True, slots=True)
class Executor:
    api: Api
    proxies: ProxyClient
    gateways: GatewayClient

    async def execute(
        self,
        fleet: Fleet,
        decided: Sequence[actions.Action],
        endpoints: Endpoints,
        *,
        check: Callable[[], None],
        now: float,
    ) -> None:
        """In order. Raises ApiUnreachable, and what `check` does, which is asked before each that disturbs a proxy;
        what the API server refuses is logged."""
        for action in decided:
            if isinstance(action, actions.AskDrain | actions.Evict):
                check()
            if isinstance(action, actions.Evict):
                failpoints.reach(failpoints.QUIESCED)
            try:
                await self._one(fleet, action, endpoints, now)
            except ApiRefused as refused:
                if not _is_gone(refused):
                    logger.warning("%s was refused: %s", type(action).__name__, refused, extra=_about(fleet))
            failpoints.reach(_failpoint(action))

    async def _one(self, fleet: Fleet, action: actions.Action, endpoints: Endpoints, now: float) -> None:
        match action:
            case actions.AskDrain():
                await self._request(fleet, action.pod, endpoints, lambda url, key: self.proxies.drain(url, key, action))
            case actions.UndoDrain():
                await self._request(fleet, action.pod, endpoints, lambda url, key: self.proxies.undo(url, key, action))
            case actions.AskDumps():
                await self._request(fleet, action.pod, endpoints, self.proxies.dump)
            case actions.Evict():
                eviction = _eviction(fleet, action)
                await self.api.create("Pod", fleet.namespace, eviction, name=action.pod, subresource="eviction")
            case actions.PatchMetadata():
                body = {"metadata": {"uid": action.uid, "annotations": action.annotations, "labels": action.labels}}
                await self.api.patch("Pod", fleet.namespace, action.pod, body)
            case actions.RemoveWorker():
                await self.gateways.remove(action, endpoints.gateway_key)
            case actions.AddWorker():
                await self.gateways.add(action, endpoints.gateway_key, endpoints.engine_key)
            case actions.EmitEvent():
                await self._emit(fleet, action, endpoints, now)

    async def _request(
        self, fleet: Fleet, pod: str, endpoints: Endpoints, ask: Callable[[str, str], Awaitable[str]]
    ) -> None:
        if pod in endpoints.proxies and (answer := await ask(*endpoints.proxies[pod])):
            logger.info("%s answered a request with %s", pod, answer, extra=_about(fleet))

    async def _emit(self, fleet: Fleet, emitted: actions.EmitEvent, endpoints: Endpoints, now: float) -> None:
        logger.info("%s: %s", emitted.reason, message_of(emitted), extra=_about(fleet))
        about = [{"apiVersion": API_VERSION, "kind": KIND, "name": fleet.name, "uid": fleet.uid}]
        pod = endpoints.pods.get(emitted.pod) if emitted.pod else None
        if pod is not None:
            meta = pod["metadata"]
            about.append({"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]})
        for each in about:
            await self._write(event(fleet, emitted, each, now))

    async def _write(self, event: Object) -> None:
        """Create an Event, or count up the one that says the same of the same object."""
        meta = event["metadata"]
        try:
            await self.api.create("Event", meta["namespace"], event)
        except ApiRefused as refused:
            there = await self.api.get("Event", meta["namespace"], meta["name"]) if refused.status == 409 else None
            if there is None:
                raise
            again = {"count": int(there.get("count") or 1) + 1, "lastTimestamp": event["lastTimestamp"]}
            await self.api.patch("Event", meta["namespace"], meta["name"], again)


def _failpoint(done: actions.Action) -> str | None:
    """The place that is reached with that action."""
    match done:
        case actions.AskDrain(then="stay"):
            return failpoints.DRAIN_ASKED
        case actions.AskDrain():
            return failpoints.RESTART_ASKED
        case actions.Evict():
            return failpoints.EVICTION_SENT
        case actions.EmitEvent(reason=EventReason.BOOTING):
            return failpoints.BOOTING
    return None


def _is_gone(refused: ApiRefused) -> bool:
    """The pod is gone, is another one of that name, or the disruption budget says no: the next pass will see."""
    another = refused.status == 422 and "metadata.uid" in refused.message
    return another or refused.status in (404, 409, 429)


def _about(fleet: Fleet) -> dict[str, Any]:
    return {"fleet": f"{fleet.namespace}/{fleet.name}", "generation": fleet.generation}


def _eviction(fleet: Fleet, evict: actions.Evict) -> Object:
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": evict.pod, "namespace": fleet.namespace},
        "deleteOptions": {"preconditions": {"uid": evict.uid}},
    }


def message_of(emitted: actions.EmitEvent) -> str:
    """With its pod named, for whoever reads it elsewhere."""
    named = emitted.pod is None or emitted.pod in emitted.message
    return emitted.message if named else f"{emitted.pod}: {emitted.message}"


def event(fleet: Fleet, emitted: actions.EmitEvent, about: Mapping[str, Any], now: float) -> Object:
    """A core/v1 Event; its name follows from what it says, and of which object."""
    message = message_of(emitted)[:LONGEST_MESSAGE]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{about['name']}.{content_hash([about['uid'], emitted.reason, message])}",
            "namespace": fleet.namespace,
        },
        "involvedObject": {**about, "namespace": fleet.namespace},
        "reason": emitted.reason,
        "message": message,
        "type": "Warning" if emitted.warning else "Normal",
        "source": {"component": OPERATOR},
        "reportingComponent": OPERATOR,
        "reportingInstance": OPERATOR,
        "firstTimestamp": text_of(now),
        "lastTimestamp": text_of(now),
        "count": 1,
    }
