"""A cluster in miniature, which acts by itself: a StatefulSet's controller, kubelets, proxies with drains and boots.

It does what the real parts are known to do, as far as decisions depend on it: under `OnDelete` a pod keeps its template
until it is gone; evictions keep to the disruption budget and let an unready pod go; a proxy quiesces, restarts itself,
writes its boots down and keeps a cordon on its volume. Things go wrong by the methods under "What goes wrong".
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rolloutfleet.boots import CRASH
from rolloutfleet.spec import FleetSpec
from rolloutfleet.status import FleetStatus
from rolloutfleet.wire import Boot, Drain, DrainMode
from rolloutfleet_operator.policy.actions import (
    Action,
    AddWorker,
    AskDrain,
    AskDumps,
    EmitEvent,
    Evict,
    PatchMetadata,
    RemoveWorker,
    UndoDrain,
)
from rolloutfleet_operator.policy.decide import Decision, Evictable
from rolloutfleet_operator.policy.observed import (
    RESTART_NOTE,
    ObservedContainer,
    ObservedDeployment,
    ObservedEngines,
    ObservedFleet,
    ObservedGateway,
    ObservedOtherPod,
    ObservedPod,
    ObservedStatefulSet,
    ObservedWorker,
    ProxyStats,
)

BASE_RSS = 1 * 2**30
WARM = 3.0
BOOT = 4.0
START = 8.0
UPDATE = 6.0
CONFIG_MAP = 20.0
"""Seconds until a mounted ConfigMap has changed."""
BAD = "bad"
"""How a template's hash begins whose image can't be pulled."""
BY_HAND = "by-hand"
"""The id of a drain that somebody else asked for."""
BY_HAND_FOR = 90.0
ENGINE = "http://engine:30000"
GATEWAY = "http://10.0.0.2:30000"


@dataclass
class Store:
    """What is on a volume."""

    boots: list[Boot] = field(default_factory=list)
    cordon: Drain | None = None
    sessions: int = 0
    turns: int = 0
    last_words: tuple[str, str | None] | None = None


@dataclass
class Pod:
    """A pod of a proxy, and the proxy in it."""

    name: str
    uid: str
    ordinal: int
    created: float
    template: str
    store: Store
    notes: dict[str, str]
    up_at: float
    """When its proxy serves."""
    generation: int
    restarted_at: str = ""
    drain: Drain | None = None
    warm_at: float = 0.0
    in_flight: int = 0
    rss: float = BASE_RSS
    ready: bool = False
    ready_since: float | None = None
    terminating_since: float | None = None
    gone_at: float = 0.0
    node_lost: bool = False
    cordoned_node: str | None = None
    hangs: bool = False
    ever_up: bool = False

    @property
    def broken(self) -> bool:
        return self.template.startswith(BAD)

    def is_up(self, now: float) -> bool:
        return not self.broken and not self.hangs and not self.node_lost and now >= self.up_at


@dataclass
class Controlled:
    """A Deployment; its controller replaces one pod after another, in UPDATE seconds each."""

    wanted: str = "t1"
    """The template that the spec comes to."""
    given: str = ""
    part_changed: bool = False
    since: float | None = None
    """The note of the operator."""
    templates: list[str] = field(default_factory=list)
    """Of each pod that is ready."""
    replaced_at: float = 0.0
    stuck: bool = False

    def tick(self, replicas: int, now: float) -> None:
        del self.templates[replicas:]
        if self.stuck or now < self.replaced_at:
            return
        old = next((place for place, template in enumerate(self.templates) if template != self.given), None)
        if len(self.templates) < replicas:
            self.templates.append(self.given)
            self.replaced_at = now + UPDATE
        elif old is not None:
            del self.templates[old]
            self.replaced_at = now + UPDATE


@dataclass
class Deeds:
    """What was done to the world by the operator's hand."""

    down: dict[str, float] = field(default_factory=dict)
    """Pods that served and were taken down by us, and since when; until they are Ready again."""
    restarted: list[tuple[str, str]] = field(default_factory=list)
    """(pod, drain id or `evicted`) of every restart that an action of ours came to."""
    impatient: list[str] = field(default_factory=list)
    """Pods that were evicted while calls were in flight that still had time."""
    lost_turns: list[str] = field(default_factory=list)
    """Ephemeral pods that went with turns, by our hand."""
    cut: list[str] = field(default_factory=list)
    """Pods on claims that were scaled away without a drain."""


class World:
    """One fleet's namespace."""

    def __init__(self, spec: FleetSpec, *, name: str = "math", template: str = "t1") -> None:
        self.now = 1_000_000.0
        self.spec = spec
        self.name = name
        self.generation = 1
        self.template = template
        self.status = FleetStatus()
        self.version = 0
        self.workload: ObservedStatefulSet | None = None
        self.applied: ObservedStatefulSet | None = None
        """The StatefulSet as the operator last made it."""
        self.restarted_at = ""
        """The annotation of `kubectl rollout restart` in the StatefulSet's template."""
        self.peers: int = 0
        self.settings_since: float | None = None
        self.settings_generation = 0
        self.gateway_replicas = 0
        self.engine_replicas = 0
        self.deployments = {"gateway": Controlled(), "engine": Controlled()}
        self.pods: dict[str, Pod] = {}
        self.claims: dict[int, Store] = {}
        self.leak: dict[int, float] = {}
        """Bytes a second, by ordinal."""
        self.needs: dict[int, int] = {}
        """Bytes just after a boot, by ordinal, where it is not BASE_RSS."""
        self.node_local = False
        """Volumes can't leave their nodes."""
        self.evictable = Evictable(ready=0, unready=True)
        """The disruption budget as it was applied."""
        self.budget = 0
        """Ready pods that may be away, as its controller has seen it."""
        self.allow_loss: frozenset[str] = frozenset()
        self.deeds = Deeds()
        self.events: list[EmitEvent] = []
        self._uids = itertools.count()

    # Time goes by.

    def tick(self, seconds: float) -> None:
        """Let all that acts by itself act, in steps of a second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for pod in list(self.pods.values()):
                self._live(pod)
            self._control()
            self.budget = self.evictable.ready
            self.deployments["gateway"].tick(self.gateway_replicas, self.now)
            self.deployments["engine"].tick(self.engine_replicas, self.now)

    def _control(self) -> None:
        """The StatefulSet's controller: missing pods are made at once, those above the number end."""
        if self.workload is None:
            return
        for ordinal in range(self.workload.replicas):
            name = self.pod_name(ordinal)
            if name not in self.pods:
                self._make(ordinal)
        for pod in self.pods.values():
            if pod.ordinal >= self.workload.replicas and pod.terminating_since is None:
                if self.workload == self.applied:
                    self._check_what_is_lost(pod)
                self._end(pod)

    def _make(self, ordinal: int) -> None:
        assert self.workload is not None
        name = self.pod_name(ordinal)
        store = Store() if self.spec.proxies.storage.ephemeral else self.claims.setdefault(ordinal, Store())
        asked = self.workload.restart_id
        pod = Pod(
            name=name,
            uid=f"{name}-{next(self._uids)}",
            ordinal=ordinal,
            created=self.now,
            template=self.workload.template_hash,
            restarted_at=self.workload.restarted_at,
            store=store,
            notes={} if asked is None else {RESTART_NOTE: asked},
            up_at=self.now + START,
            generation=self.settings_generation,
        )
        assert all(other.ordinal != ordinal for other in self.pods.values()), "two owners of one ordinal"
        self.pods[name] = pod

    def _live(self, pod: Pod) -> None:
        if pod.terminating_since is not None and not pod.node_lost and self.now >= pod.gone_at:
            self._gone(pod)
            return
        up = pod.is_up(self.now)
        if up and not pod.ever_up:
            self._boot(pod, "first" if not pod.store.boots else "crash: its end was not recorded", None)
            pod.ever_up = True
        if up:
            pod.rss += self.leak.get(pod.ordinal, 0.0)
            self._drain(pod)
        ready = up and pod.drain is None and pod.is_up(self.now)
        if ready != pod.ready or pod.ready_since is None:
            pod.ready, pod.ready_since = ready, self.now
        if ready:
            self.deeds.down.pop(pod.name, None)
        if self.settings_since is not None and self.now - self.settings_since >= CONFIG_MAP:
            pod.generation = self.settings_generation

    def _drain(self, pod: Pod) -> None:
        drain = pod.drain
        if drain is None:
            return
        if drain.expires is not None and self.now >= drain.expires:
            self._undrain(pod)
            return
        pod.in_flight = max(0, pod.in_flight - 1)
        if drain.mode == "quiesce" and not drain.holding and (drain.then != "restart" or self.now >= pod.warm_at):
            deadline = self.now + self.spec.disruption.drain_timeout
            drain = pod.drain = drain.model_copy(update={"holding": True, "deadline": deadline})
            self._taken_down(pod, by_us=drain.id != BY_HAND)
        if drain.holding:
            pod.drain = drain.model_copy(update={"under_way": pod.in_flight})
            quiet = pod.in_flight == 0 or (drain.deadline is not None and self.now >= drain.deadline)
            if drain.then != "stay" and quiet:
                self.deeds.restarted.append((pod.name, drain.id))
                self._boot(pod, f"planned: {drain.id}", drain.id)
                pod.drain = None
                pod.up_at = self.now + (BOOT if drain.then == "restart" else 2 * BOOT)

    def _boot(self, pod: Pod, reason: str, id: str | None) -> None:
        if pod.store.last_words is not None and not pod.ever_up:
            reason, id = pod.store.last_words
            pod.store.last_words = None
        before, pod.rss = int(pod.rss), self.needs.get(pod.ordinal, BASE_RSS)
        pod.store.boots.append(Boot(time=self.now, reason=reason, id=id, rss_before=before, rss_after=int(pod.rss)))
        del pod.store.boots[:-20]
        if pod.drain is None and pod.store.cordon is not None:
            pod.drain = pod.store.cordon

    def _end(self, pod: Pod) -> None:
        """SIGTERM: it quiesces, flushes, and is gone."""
        pod.terminating_since = self.now
        pod.gone_at = self.now + min(pod.in_flight, self.spec.disruption.drain_timeout) + 2.0
        if pod.ever_up:
            drain = pod.drain
            id = drain.id if drain is not None and drain.mode == "quiesce" else None
            pod.store.last_words = ("stopped: SIGTERM", id)
            pod.store.cordon = drain if drain is not None and drain.mode == "cordon" else None

    def _gone(self, pod: Pod) -> None:
        del self.pods[pod.name]

    def _undrain(self, pod: Pod) -> None:
        pod.drain = None
        pod.store.cordon = None

    def _taken_down(self, pod: Pod, *, by_us: bool = True) -> None:
        if pod.ordinal < self.desired and by_us:
            self.deeds.down.setdefault(pod.name, self.now)

    def _check_what_is_lost(self, pod: Pod) -> None:
        """Of a pod that ends by our hand."""
        if not pod.store.turns or not pod.ever_up:
            return
        if self.spec.proxies.storage.ephemeral and pod.name not in self.allow_loss:
            self.deeds.lost_turns.append(pod.name)
        if pod.ordinal >= self.desired and pod.drain is None and pod.is_up(self.now):
            self.deeds.cut.append(pod.name)

    # What is to be seen.

    @property
    def desired(self) -> int:
        return 0 if self.spec.suspend else self.spec.proxies.replicas

    def pod_name(self, ordinal: int) -> str:
        return f"{self.name}-proxy-{ordinal}"

    def snapshot(self) -> ObservedFleet:
        """As a faultless executor sees it, but for what it only remembers (runs, failed polls)."""
        return ObservedFleet(
            namespace="default",
            name=self.name,
            generation=self.generation,
            template_hash=self.template,
            status=self.status,
            pods=tuple(self._seen(pod) for pod in self.pods.values()),
            workload=self.workload,
            gateway=ObservedGateway(
                deployment=self._deployment("gateway", self.gateway_replicas),
                lists={GATEWAY: (ObservedWorker(url=ENGINE, healthy=True),)}
                if self.gateway_replicas and self.engine_replicas
                else {},
            ),
            engines=ObservedEngines(
                urls=(ENGINE,) if self.engine_replicas else (),
                deployment=self._deployment("engine", self.engine_replicas),
            ),
            node_local=self.node_local,
            allow_loss=self.allow_loss,
            settings_since=self.settings_since if self.settings_generation == self.generation else None,
        )

    def _deployment(self, kind: str, replicas: int) -> ObservedDeployment:
        seen = self.deployments[kind]
        there = 0 if not seen.given else replicas
        ready = [place < len(seen.templates) for place in range(there)]
        pods = tuple(
            ObservedOtherPod(name=f"{self.name}-{kind}-{place}", ready=each, created=self.now)
            for place, each in enumerate(ready)
        )
        return ObservedDeployment(
            replicas=replicas,
            there=there,
            ready=sum(ready),
            # One that is missing is being made, of the newest template.
            updated=seen.templates.count(seen.given) + ready.count(False),
            pods=pods,
            outdated=bool(seen.given) and seen.given != seen.wanted,
            part_changed=seen.part_changed,
            updating_since=seen.since,
        )

    def _seen(self, pod: Pod) -> ObservedPod:
        container = ObservedContainer(
            waiting="ImagePullBackOff" if pod.broken else None,
            image="registry/proxy:wrong" if pod.broken else "",
            running=not pod.broken,
            started=pod.ever_up,
        )
        return ObservedPod(
            name=pod.name,
            uid=pod.uid,
            ordinal=pod.ordinal,
            created=pod.created,
            template_hash=pod.template,
            restarted_at=pod.restarted_at,
            ready=pod.ready,
            ready_since=pod.ready_since,
            terminating_since=pod.terminating_since,
            node_lost=pod.node_lost,
            cordoned_node=pod.cordoned_node,
            container=container,
            notes=dict(pod.notes),
            stats=self._stats(pod) if pod.is_up(self.now) else None,
        )

    def _stats(self, pod: Pod) -> ProxyStats:
        return ProxyStats(
            rss=int(pod.rss),
            in_flight=pod.in_flight,
            sessions_open=pod.store.sessions,
            held_sessions=pod.store.sessions,
            held_turns=pod.store.turns,
            drain=pod.drain,
            boots=tuple(pod.store.boots),
            store_id=f"s{pod.ordinal}",
            settings_generation=pod.generation,
            live_generation=pod.generation,
        )

    # What is done to it by hand.

    def rollout_restart(self) -> None:
        """`kubectl rollout restart` of the StatefulSet."""
        assert self.workload is not None
        self.restarted_at = f"{self.now}"
        self.workload = self.applied = replace(self.workload, restarted_at=self.restarted_at)

    # What is done to it by the operator.

    def write_status(self, status: FleetStatus, version: int) -> bool:
        """False where another write came between."""
        if version != self.version:
            return False
        if status != self.status:
            self.status, self.version = status, self.version + 1
        return True

    def apply(self, decision: Decision) -> None:
        """The children, as server-side apply would make them."""
        replicas, peers = decision.replicas, decision.peers
        asked = None if self.spec.restart is None else self.spec.restart.id
        self.workload = self.applied = ObservedStatefulSet(
            replicas=replicas, template_hash=self.template, restart_id=asked, restarted_at=self.restarted_at
        )
        if (self.peers, self.settings_generation) != (peers, self.generation):
            self.peers, self.settings_generation, self.settings_since = peers, self.generation, self.now
        self.gateway_replicas, self.engine_replicas = decision.gateway_replicas, decision.engine_replicas or 0
        self.evictable = decision.evictable
        for update in decision.updates:
            deployment = self.deployments[update.name.removeprefix(f"{self.name}-")]
            deployment.since = update.since
            if update.apply:
                deployment.given, deployment.part_changed = deployment.wanted, False

    def act(self, action: Action) -> None:
        pod = self.pods.get(action.pod) if not isinstance(action, AddWorker | RemoveWorker) and action.pod else None
        if isinstance(action, EmitEvent):
            self.events.append(action)
        elif pod is None:
            return
        elif isinstance(action, Evict):
            self._evict(pod, action)
        elif isinstance(action, PatchMetadata):
            self._mark(pod, action)
        elif pod.is_up(self.now) and pod.terminating_since is None:
            self._told(pod, action)

    def _told(self, pod: Pod, action: Action) -> None:
        """A call of the proxy's own API."""
        if isinstance(action, AskDrain):
            self.ask_drain(pod, action)
        elif isinstance(action, UndoDrain) and pod.drain is not None and pod.drain.id == action.id:
            self._undrain(pod)
        elif isinstance(action, AskDumps) and pod.drain is not None:
            pod.store.sessions = pod.store.turns = 0

    def ask_drain(self, pod: Pod, asked: AskDrain) -> None:
        before = pod.drain
        if before is not None and before.id != asked.id:
            return
        if before is None and asked.then != "stay" and any(boot.id == asked.id for boot in pod.store.boots):
            return
        same = before is not None and (before.mode, before.then) == (asked.mode, asked.then)
        if before is None or not same:
            pod.warm_at = self.now + WARM
        pod.drain = Drain(
            id=asked.id,
            mode=asked.mode,
            then=asked.then,
            since=before.since if before is not None else self.now,
            expires=self.now + asked.ttl,
            holding=before.holding if before is not None and same else False,
            deadline=before.deadline if before is not None and same else None,
            under_way=before.under_way if before is not None and same else None,
        )
        pod.store.cordon = pod.drain if asked.mode == "cordon" else None
        # The kubelet's next probe finds a draining proxy unready.
        pod.ready, pod.ready_since = False, self.now

    def _evict(self, pod: Pod, asked: Evict) -> None:
        if pod.uid != asked.uid or pod.terminating_since is not None:
            return
        unready = sum(not each.ready for each in self.pods.values())
        if unready + 1 > self.budget if pod.ready else not self.evictable.unready:
            return
        if pod.is_up(self.now):
            self._taken_down(pod)
            drain = pod.drain
            timed_out = drain is not None and drain.deadline is not None and self.now >= drain.deadline
            if pod.in_flight and not timed_out:
                self.deeds.impatient.append(pod.name)
        self._check_what_is_lost(pod)
        self.deeds.restarted.append((pod.name, f"evicted: {asked.why}"))
        self._end(pod)

    def _mark(self, pod: Pod, action: PatchMetadata) -> None:
        if pod.uid != action.uid:
            return
        for name, value in (*action.annotations.items(), *action.labels.items()):
            if value is None:
                pod.notes.pop(name, None)
            else:
                pod.notes[name] = value

    # What goes wrong.

    def crash(self, pod: Pod, how: str = "was killed by SIGKILL") -> None:
        """The worker dies, and its parent starts another."""
        if pod.is_up(self.now) and pod.terminating_since is None:
            drain, pod.drain = pod.drain, None
            ended = drain is not None and drain.then != "stay"
            if drain is not None and not ended:
                pod.drain = drain
            if ended and drain is not None:
                self.deeds.restarted.append((pod.name, drain.id))
            self._boot(pod, f"{CRASH}: {how}", drain.id if ended and drain is not None else None)
            pod.up_at = self.now + BOOT
            pod.in_flight = 0

    def lose(self, pod: Pod) -> None:
        """It is force-deleted by somebody."""
        self.deeds.down.pop(pod.name, None)
        self._gone(pod)

    def edit(self, **changes: object) -> None:
        """The user changes the spec: `replicas`, `suspend`, `restart`, `template`, `budget` or `mode`."""
        self.generation += 1
        template = changes.pop("template", None)
        if template is not None:
            self.template = str(template)
        written = self.spec.model_dump(by_alias=True, mode="python")
        for name, value in changes.items():
            if name == "replicas":
                written["proxies"]["replicas"] = value
            elif name == "restart":
                written["restart"] = {"id": value}
            elif name == "budget":
                written["memory"]["rssBudget"] = value
            elif name == "mode":
                written["memory"]["restart"] = value
            else:
                written[name] = value
        self.spec = FleetSpec.model_validate(written)
        for name in [name for name, pod in self.pods.items() if pod.ordinal >= self.desired]:
            self.deeds.down.pop(name, None)

    def drain_by_hand(self, pod: Pod, *, quiesce: bool) -> None:
        """Somebody else drains it for a while."""
        mode: DrainMode = "quiesce" if quiesce else "cordon"
        if pod.is_up(self.now) and pod.terminating_since is None:
            self.ask_drain(
                pod, AskDrain(pod=pod.name, id=BY_HAND, mode=mode, then="stay", ttl=BY_HAND_FOR, reason="by hand")
            )

    def scale_by_hand(self, replicas: int) -> None:
        """Somebody edits the StatefulSet."""
        if self.workload is not None:
            self.workload = replace(self.workload, replicas=replicas)

    def among(self, ordinals: Iterable[int]) -> list[Pod]:
        return [pod for ordinal in ordinals if (pod := self.pods.get(self.pod_name(ordinal))) is not None]
