"""The observed state of a fleet: plain data, made by the executor, read by every decision.

Times are seconds since 1970, sizes are bytes. What is not known is None, never a guess: a poll that failed leaves
`stats` None, a list that could not be read is None as a whole. Only children of this fleet are here (by label,
namespace and owner's uid), and only pods of the proxies among `pods`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from rolloutfleet.spec import API_VERSION
from rolloutfleet.status import FleetStatus
from rolloutfleet.wire import Boot, Drain
from rolloutfleet_operator.policy.reasons import Problem

GROUP: Final = API_VERSION.partition("/")[0]
STATE_LABEL: Final = f"{GROUP}/state"
"""On each pod of a proxy: what the operator thinks of it (`decide.PodState`, and the label of a cause)."""
RESTART_NOTE: Final = f"{GROUP}/restart-id"
"""On pods, and in the template of new ones: the newest `spec.restart.id` that this pod needs no restart for."""
OVER_AGAIN_NOTE: Final = f"{GROUP}/over-budget-again"
"""On a pod that was over its budget again soon after a restart for it: the id of that restart."""
TOO_SMALL_NOTE: Final = f"{GROUP}/budget-too-small"
"""On a pod that is not restarted for its memory any more: as JSON, under which terms, and its memory after a boot."""
BOOTS_NOTE: Final = f"{GROUP}/boots-counted"
"""On each pod whose proxy crashed: the time of the newest crash that is counted in the status."""
STEP_NOTE: Final = f"{GROUP}/step"
"""On a pod that is being restarted or retired: id and step, for people."""
ALLOW_LOSS: Final = f"{GROUP}/allow-loss"
"""On the fleet: names of ephemeral pods, with commas, whose undumped turns may be lost."""


READY_WITHIN: Final = 600.0
"""Seconds that a pod has to become Ready in: an image is pulled, a full store recovered, a tokenizer fetched."""
LOADED_WITHIN: Final = 7200
"""Seconds that an engine has to fetch and load its weights; then its start-up probe fails."""
STUCK_AFTER: Final = 60.0
"""Seconds beyond its grace after which a pod that ends has not ended for a reason."""
SILENT_POLLS: Final = 3
"""So many failed polls in a row, at least, make a proxy unresponsive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The samples over budget at the end of those taken."""

    budget: int | None = None
    boot: float | None = None
    """The life of the proxy that they were taken in."""
    taken: int = 0
    """Samples that told something."""
    at: float | None = None
    """When the newest of them was taken."""
    over: int = 0
    """How many in a row, up to now, were over the budget."""
    full_at: float | None = None
    """When there were as many as the rule asks for."""


NO_RUN: Final = Run()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyStats:
    """A proxy's answer: /stats, and of one of an earlier release /audit where the executor asked for it."""

    rss: int
    store_id: str = ""
    sessions_open: int = 0
    in_flight: int = 0
    held_sessions: int | None = None
    """Sessions live or leased; None where an earlier release was not asked."""
    held_turns: int | None = None
    """Turns live or leased (neither acknowledged nor dumped); None where an earlier release was not asked."""
    drain: Drain | None = None
    """The one that it is in; see docs/restarts.md."""
    boots: tuple[Boot, ...] = ()
    """Its log of them, oldest first: when, why the life before ended, and by which drain."""
    dump_failing: bool = False
    dump_error: str | None = None
    paused: bool = False
    past_max_hold: bool = False
    """The pause has lasted longer than `sessions.maxHold`."""
    settings_generation: int = 0
    """Of the settings that are wholly in force."""
    live_generation: int | None = None
    """Of those that are in force but for what `needs_restart` names; None where an earlier release does not say."""
    settings_error: str | None = None
    needs_restart: tuple[str, ...] = ()
    """Settings that only a restart brings into force."""
    gateway_loses: tuple[str, ...] = ()
    """What of its requests does not reach the engines."""
    store_full: bool = False
    """The store refuses turns for want of disk (507)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedContainer:
    """The kubelet's words on a pod's main container; the first that is in trouble, where there are several."""

    waiting: str | None = None
    """`ImagePullBackOff`, `CrashLoopBackOff`, `CreateContainerConfigError` … as the kubelet says."""
    message: str = ""
    """The kubelet's message on that. It may move (`back-off 2m40s …`), so it is shown for few of them."""
    image: str = ""
    running: bool = False
    started: bool = False
    """Its start-up probe has passed since it last began."""
    restarts: int = 0
    last_end: str | None = None
    """Why it last ended: `OOMKilled`, `Error`, `Completed`."""
    last_exit: int | None = None
    last_ended_at: float | None = None
    last_words: str = ""
    """Its termination message; a proxy that can't start says `ClassName: message`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedOtherPod:
    """A pod of the gateway or of engines; what is seen of a proxy's, too."""

    name: str
    created: float
    ready: bool = False
    """The kubelet's condition Ready."""
    ready_since: float | None = None
    """When that last changed; None where it was never set."""
    terminating_since: float | None = None
    grace: float = 30.0
    """Seconds that it has to end in, once terminating."""
    node_lost: bool = False
    """Its node is not Ready, or gone."""
    unschedulable: str | None = None
    """The scheduler's message, while it finds no node."""
    container: ObservedContainer = ObservedContainer()

    def is_unready_for(self, seconds: float, now: float) -> bool:
        """True where it is not Ready for so long, and not because it ends."""
        return (
            not self.ready
            and self.terminating_since is None
            and now - max(self.created, self.ready_since or 0.0) > seconds
        )

    def is_late(self, now: float) -> bool:
        """True of one not Ready for longer than a start takes: before its container runs, or while that starts up."""
        starts_up = self.container.running and not self.container.started
        return self.is_unready_for(LOADED_WITHIN if starts_up else READY_WITHIN, now)

    @property
    def never_ran(self) -> bool:
        """Whether its container was never started."""
        container = self.container
        return not self.ready and not (
            container.running or container.started or container.restarts or container.last_end
        )

    def is_stuck(self, now: float) -> bool:
        """Whether it should have ended long ago."""
        return self.terminating_since is not None and now - self.terminating_since > self.grace + STUCK_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedPod(ObservedOtherPod):
    """One pod of a proxy, and what its proxy answered."""

    uid: str
    ordinal: int
    template_hash: str
    """The annotation that our template gave it; empty where there is none."""
    restarted_at: str = ""
    """As ObservedStatefulSet has it, when the pod was made."""
    grace: float = 90.0
    notes: Mapping[str, str] = field(default_factory=dict)
    """Its annotations and labels of our group, by full name."""
    stats: ProxyStats | None = None
    """The newest poll; None where that failed or none was made."""
    key_refused: bool = False
    """It answered that poll, and does not take the first of the admin keys."""
    unanswered: int = 0
    """Polls that failed in a row."""
    in_drain: bool = False
    """Its newest answer, be it older than the newest poll, told of a drain that is not over."""
    cordoned_node: str | None = None
    """Its node, where that is cordoned; known only where the fleet's volumes are `node_local`."""
    run: Run = NO_RUN
    """Its samples of memory, folded by `memory.sampled` at each poll; begins anew with another uid."""

    @property
    def drain(self) -> Drain | None:
        """The drain that it is in, as far as is known."""
        return None if self.stats is None else self.stats.drain

    @property
    def serves(self) -> bool:
        """Whether its sessions are served, as far as is known.

        Not every proxy that does is Ready: one that drains is not, nor one that did a moment ago. A failed poll is
        unknown, and so are any number of them in a drain, for which the kubelet finds it unready whatever it does.
        """
        if self.terminating_since is not None:
            return False
        stats = self.stats
        if stats is None:
            return self.ready or (self.container.started and (self.in_drain or self.unanswered < SILENT_POLLS))
        return self.ready or stats.drain is not None or stats.in_flight + stats.sessions_open > 0

    @property
    def is_down(self) -> bool:
        """Whether nobody loses anything by its replacement: it is there, not on its way out, and does not serve."""
        return self.terminating_since is None and not self.serves

    @property
    def never_ran(self) -> bool:
        """Whether its proxy was never started, so that an ephemeral volume of it is empty."""
        return self.stats is None and super(ObservedPod, self).never_ran

    @property
    def holds_turns(self) -> bool:
        """Whether turns are lost with its volume. What was not asked, or not answered, is held."""
        if self.never_ran:
            return False
        return self.stats is None or self.stats.held_turns is None or self.stats.held_turns > 0

    def is_silent(self, *, for_seconds: float, samples: int, now: float) -> bool:
        """Whether it gives no answer, and the kubelet, which saw it start, finds it unready as well."""
        if not self.is_down or self.node_lost or not self.container.started:
            return False
        if self.stats is not None or self.unanswered < max(samples, SILENT_POLLS):
            return False
        return self.ready_since is not None and now - self.ready_since >= for_seconds

    def is_late(self, now: float) -> bool:
        """Whether it is not Ready for longer than any start takes, and for no drain."""
        return self.drain is None and self.is_unready_for(READY_WITHIN, now)

    def has_booted(self, id: str) -> bool:
        """Whether a life of its proxy was ended by the drain of that id."""
        return self.stats is not None and any(boot.id == id for boot in self.stats.boots)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedClaim:
    """The claim of one proxy's volume."""

    name: str
    ordinal: int
    bound: bool
    created: float = 0.0
    provisioner: str | None = None
    """Who was asked to make its volume; None while nobody was, as before its pod has a node."""
    message: str = ""
    """The newest warning of its Events (no such class, no room), while it is not bound or not grown."""
    growing: bool = False
    """A larger size was asked for than the volume has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedStatefulSet:
    """The StatefulSet of the proxies, as it is in the cluster."""

    replicas: int
    template_hash: str
    """Of the template that new pods get."""
    restart_id: str | None = None
    """RESTART_NOTE of that template."""
    restarted_at: str = ""
    """The annotation that `kubectl rollout restart` puts into the template; empty where it never did."""
    current: bool = True
    """Its controller has seen this generation, so that a new pod gets this template."""
    failed_create: str = ""
    """The newest warning that a pod could not be made (a quota, a policy); empty once it could."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedDeployment:
    """A Deployment of ours, and its pods. The counts are its controller's, which leave out pods that end."""

    replicas: int
    """So many are asked for there."""
    there: int = 0
    """Pods of all its templates."""
    ready: int = 0
    """Of these, how many are ready."""
    updated: int = 0
    """Of these, how many have its newest template."""
    current: bool = True
    """Its controller has seen this generation."""
    as_asked: bool = True
    """It is what the spec asks for, its replicas and template apart; False until it is applied anew."""
    outdated: bool = False
    """It was given another template than the spec comes to now."""
    part_changed: bool = False
    """Its own part of the spec has changed since."""
    key_changed: bool = False
    """Its pods were started with another key of the control plane than there is."""
    updating_since: float | None = None
    """When its pods began to be replaced; None where they are not being."""
    refused: bool = False
    """The template that the spec comes to can't be given to it now: the API server refused that a moment ago."""
    failed_create: str = ""
    pods: tuple[ObservedOtherPod, ...] = ()

    def is_rolled_out(self, wanted: int) -> bool:
        """Whether so many pods are there, all of them of the spec that was seen, and nothing of what was before.

        The counts of ready pods and of new ones alone don't tell: while a roll is stuck, an old pod is the ready one.
        """
        counts = {self.replicas, self.there, self.updated}
        return self.as_asked and self.current and counts == {wanted}

    def is_complete(self, wanted: int) -> bool:
        """Whether that is so, and all of them are ready."""
        return self.is_rolled_out(wanted) and self.ready == wanted

    def is_overdue(self, since: float, now: float) -> bool:
        """True where the update that began then has lasted longer than its pods need one after another, or than it
        takes to find room for them."""
        return now - since > (READY_WITHIN if self.failed_create else LOADED_WITHIN) * (self.replicas + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedWorker:
    """An engine as a gateway lists it (`GET /workers`)."""

    url: str
    healthy: bool
    id: str | None = None
    draining: bool = False
    """It is being removed, and gets nothing new."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedGateway:
    deployment: ObservedDeployment | None = None
    """None where there is none yet."""
    lists: Mapping[str, tuple[ObservedWorker, ...]] = field(default_factory=dict)
    """What each gateway lists, by the gateway's address; those that did not answer are not here."""

    @property
    def workers(self) -> tuple[ObservedWorker, ...] | None:
        """Of all gateways together, an engine being healthy where one says so; None where none answered."""
        if not self.lists:
            return None
        found: dict[str, ObservedWorker] = {}
        for worker in (each for listed in self.lists.values() for each in listed):
            if worker.url not in found or worker.healthy:
                found[worker.url] = worker
        return tuple(found[url] for url in sorted(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedEngines:
    urls: tuple[str, ...] | None = None
    """Addresses of the engines that there are, ready or not (pods that have an address and are not terminating, or
    `gateway.engines.urls`), in the form of `ObservedWorker.url`; None where they could not be listed."""
    ready: tuple[str, ...] = ()
    """Of these, the engines whose pods are ready."""
    deployment: ObservedDeployment | None = None
    """Of engines that the fleet runs itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """A fleet that waits for one of the operator's slots. Those of all fleets are in `cluster/slots.py`."""

    fleet: str
    """namespace/name."""
    priority: int
    """Of the cause, as in `causes.Due`."""
    since: float
    renewed: float
    """When it was last made; one that is not renewed is dropped."""
    begun: bool = False
    """It is in the middle of a roll."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherFleets:
    """What the operator's other fleets do, taken from their newest decisions."""

    held: int = 0
    """The sum of their `Decision.held`."""
    slot_requests: tuple[SlotRequest, ...] = ()
    known: bool = True
    """Each fleet was looked at since the operator began. While this is False nothing new is begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedFleet:
    """One fleet, all of it, at one moment."""

    namespace: str
    name: str
    generation: int
    template_hash: str
    """Of the pods that the spec asks for, whether applied already or not."""
    status: FleetStatus = field(default_factory=FleetStatus)
    """As read with the fleet; it is written back under that resourceVersion only."""
    pods: tuple[ObservedPod, ...] = ()
    workload: ObservedStatefulSet | None = None
    """None where there is none yet."""
    claims: tuple[ObservedClaim, ...] = ()
    gateway: ObservedGateway = ObservedGateway()
    engines: ObservedEngines = ObservedEngines()
    node_local: bool = False
    """The proxies' volumes can be used on one node alone, as far as is known."""
    problems: tuple[Problem, ...] = ()
    """What the executor itself met."""
    other_fleets: OtherFleets = OtherFleets()
    most_disruptions: int = 1
    """The operator's `maxConcurrentDisruptions`."""
    allow_loss: frozenset[str] = frozenset()
    """Pods named by ALLOW_LOSS."""
    settings_since: float | None = None
    """When the settings of this generation were written; None where they were not."""
    endpoint: str | None = None
    """Where sessions are started."""
    selector: str = ""
    """Chooses the pods of proxies, as text."""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


def ordinal_of(name: str) -> int:
    """That in which the name of a pod or claim ends; -1 for a name that does not."""
    end = name.rpartition("-")[2]
    return int(end) if end.isdecimal() else -1


def text_of(time: float) -> str:
    """`2026-11-21T18:00:00Z`; parts of a second are left out."""
    return datetime.fromtimestamp(int(time), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float:
    """Seconds since 1970; 0 for a text that is not a time, so that a status written by hand stops nothing."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0
