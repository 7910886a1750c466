"""One pass over one fleet: read its objects, decide, write its status, apply its children, execute actions.

A pass is level-triggered: it depends on the observed state and not on events, so any operator may run it at any time
and any number of times. What is kept between passes (samples of memory, what our last apply returned) may be lost.
"""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, Final

from rolloutfleet.spec import KIND, FleetSpec
from rolloutfleet.status import FleetStatus
from rolloutfleet_operator.cluster import failpoints, observe, reading
from rolloutfleet_operator.cluster.api import Api, ApiRefused, ApiUnreachable, Object
from rolloutfleet_operator.cluster.apply import Children, Id, Outcome, identity
from rolloutfleet_operator.cluster.children import all as every
from rolloutfleet_operator.cluster.children import names, network, templates
from rolloutfleet_operator.cluster.children import proxies as proxy_children
from rolloutfleet_operator.cluster.children import settings as settings_of
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.merging import TemplateInvalid
from rolloutfleet_operator.cluster.children.names import Component, Fleet, selector
from rolloutfleet_operator.cluster.children.network import FieldInvalid
from rolloutfleet_operator.cluster.executor import Endpoints, Executor
from rolloutfleet_operator.cluster.keys import FleetKeys, FoundKey
from rolloutfleet_operator.cluster.lease import LeaseLost
from rolloutfleet_operator.cluster.logs import logger
from rolloutfleet_operator.cluster.metrics import OperatorMetrics
from rolloutfleet_operator.cluster.observe import Polled
from rolloutfleet_operator.cluster.other_operators import Watch
from rolloutfleet_operator.cluster.proxy_client import KeyRefused
from rolloutfleet_operator.cluster.reading import FleetObjects, Snapshot, SpecInvalid
from rolloutfleet_operator.cluster.running_pods import Resizer, refreshes
from rolloutfleet_operator.cluster.settings import OperatorSettings
from rolloutfleet_operator.cluster.slots import Slots
from rolloutfleet_operator.cluster.volumes import CordonedNodes, Volumes
from rolloutfleet_operator.cluster.warning_events import WarningEvents
from rolloutfleet_operator.policy.decide import REQUEUE_SOON, Decision, decide
from rolloutfleet_operator.policy.memory import sampled
from rolloutfleet_operator.policy.observed import (
    ALLOW_LOSS,
    ObservedDeployment,
    ObservedEngines,
    ObservedFleet,
    ObservedGateway,
    seconds_of,
    text_of,
)
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason
from rolloutfleet_operator.policy.status import NOT_AS_ASKED, status, unusable
from rolloutfleet_operator.policy.updates import Update
from rolloutfleet_operator.policy.workers import engines_by_address

RESYNC: Final = 300.0
"""Seconds between passes over a fleet where nothing happens and nothing is sampled."""
RELIST: Final = 600.0
"""Seconds after which what is watched is read anew, whatever the watches said. Fleets differ by a fifth, so that those
which began together don't all read at once."""
REFUSED_FOR: Final = 60.0
"""Seconds after which a template that the API server refused is given to a Deployment again."""
LONGEST_REST: Final = 1.5
"""Times as long as a silent proxy was waited for it is left alone, after three silences in a row."""
MOST_SAID: Final = 500
"""Letters of what a pass failed with."""
MOST_NAMED: Final = 5
"""Fields of the spec that are not known here, by name; of more it is said how many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What all passes share."""

    api: Api
    executor: Executor
    operator: OperatorSettings
    version: str
    slots: Slots
    clock: Callable[[], float]
    """Seconds since 1970."""
    metrics: OperatorMetrics
    others: Watch
    warning_events: WarningEvents
    cordoned_nodes: CordonedNodes


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredState:
    """What a spec asks for, before anything is decided."""

    template: Object | None
    """The pods'; None where podTemplate can't be used."""
    template_hash: str
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class RefusedTemplate:
    """A Deployment's template that the API server did not take."""

    hash: str | None
    problem: Problem
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """What came of a pass."""

    next_in: float
    """Seconds until the next one is due."""
    touched: Set[str] = frozenset()
    """Kinds of which what it read is surely old. (Of what else it wrote, events tell.)"""
    body: Object | None = None
    """The fleet as this pass left it."""
    unsure: bool = False
    """Nothing was done: it came to something that is only done by what was just read."""


class Reconciler:
    """Passes over one fleet, one at a time."""

    def __init__(
        self, shared: Shared, namespace: str, name: str, *, turns: asyncio.Semaphore, check: Callable[[], None]
    ) -> None:
        """A pass takes one of the `turns`, but for while it waits for proxies and gateways to answer. `check` raises
        where this operator may not act any more: each act that disturbs is made after one."""
        self._shared, self._turns, self._check = shared, turns, check
        self._turn = contextlib.AsyncExitStack()  # empty while the pass has none
        self._namespace, self._name = namespace, name
        self._children = Children(shared.api, check)
        self._resizer = Resizer(shared.api)
        self._keys = FleetKeys(shared.api, shared.executor.proxies)
        self._volumes = Volumes(shared.api)
        self._polled: dict[str, Polled] = {}
        self._problems: tuple[Problem, ...] = ()
        self._refused: dict[str, RefusedTemplate] = {}
        self._again_at: float | None = None
        self._began = 0.0
        self._audit: frozenset[str] = frozenset()
        self._snapshot: Snapshot | None = None
        self._touched: Set[str] = frozenset()
        self._relist_after = RELIST * random.uniform(0.8, 1.2)
        self.generation = 0

    @property
    def key(self) -> str:
        return f"{self._namespace}/{self._name}"

    def begin_anew(self, *, failed: bool) -> None:
        """Read everything in the next pass, which the other fleets wait for: all may have changed since the last.

        They don't wait for long where this fleet's passes `failed`, or are not made.
        """
        self._snapshot = None
        self._shared.slots.expect(self.key, failed_at=self._now() if failed else None)

    async def reconcile(self, changed: Set[str]) -> float | None:
        """One pass. Returns when the next one is due, in seconds from now; None where the fleet is gone or going.

        `changed`: the kinds of which something changed since the last one, as the watches tell. Other objects are taken
        as the last pass found them, for as long as `RELIST`; but all are read before a proxy is disturbed. Raises
        ApiUnreachable, and ApiRefused; what does not pass by itself stands in the status, as does all else it raises.
        """
        self._began = self._now()
        try:
            async with self._turn:
                await self._turn.enter_async_context(self._turns)
                return await self._reconcile(changed)
        except (ApiUnreachable, LeaseLost):
            raise
        except Exception as error:
            if not (isinstance(error, ApiRefused) and error.is_passing):
                await self._tell_failed(_failed(error))
            raise

    async def _tell_failed(self, problem: Problem) -> None:
        """A pass ended where none should: one fleet's, which the others go on without."""
        with contextlib.suppress(ApiUnreachable, ApiRefused):
            body = await self._shared.api.get(KIND, self._namespace, self._name)
            if body is not None:
                await self._write_unusable(body, problem)

    async def _write_unusable(self, body: Object, problem: Problem) -> None:
        self.begin_anew(failed=True)
        new = unusable(reading.status_of(body), problem, body["metadata"]["generation"], self._now())
        self._shared.metrics.saw((self._namespace, self._name), new)
        await self._write(body, new)

    async def _reconcile(self, changed: Set[str]) -> float | None:
        snapshot, self._snapshot = self._snapshot, None
        changed, self._touched = changed | self._touched, frozenset()
        if snapshot is not None and self._now() - snapshot.since < self._relist_after:
            return await self._read_and_pass(snapshot, changed)
        return await self._read_and_pass(None, reading.WATCHED)

    async def _read_and_pass(
        self, snapshot: Snapshot | None, changed: Set[str], *, polled: bool = False
    ) -> float | None:
        """By what is left of the last pass, but for the kinds that `changed`; `polled`: the proxies were just asked."""
        since, body, known = (self._now(), None, {}) if snapshot is None else (snapshot.since, *snapshot.unpacked())
        if body is None or KIND in changed:
            body = await self._shared.api.get(KIND, self._namespace, self._name)
        if body is None or "deletionTimestamp" in body["metadata"]:
            return None  # garbage collection ends it
        self.generation = body["metadata"]["generation"]
        try:
            fleet = reading.fleet_of(body)
        except SpecInvalid as error:
            await self._write_unusable(body, Problem(ProblemReason.SPEC_INVALID, str(error)))
            return RESYNC
        found = {**known, **await reading.find(self._shared.api, fleet, reading.WATCHED & changed)}
        api, events, nodes = self._shared.api, self._shared.warning_events, self._shared.cordoned_nodes
        there = await reading.read_more(api, events, self._volumes, nodes, fleet, found)
        passed = await self._pass(body, fleet, there, sure=snapshot is None, polled=polled)
        if passed.unsure:
            return await self._read_and_pass(None, reading.WATCHED, polled=True)
        as_it_was = not changed and passed.body is body
        self._snapshot = snapshot if as_it_was else Snapshot.of(passed.body or body, found, since=since)
        self._touched = passed.touched
        return passed.next_in

    def _now(self) -> float:
        return self._shared.clock()

    async def _pass(self, body: Object, fleet: Fleet, objects: FleetObjects, *, sure: bool, polled: bool) -> PassResult:
        """`sure`: all of it was read just now; `polled`: and the proxies were asked."""
        addresses = [observe.address_of(pod, names.PROXY_PORT) for pod in objects.proxies]
        keys = await self._keys.keys(fleet, objects.secret, addresses, self._now())
        of_proxies = await self._keys.of_proxies(fleet, keys.key, objects.proxies)
        control, engine_key = await asyncio.gather(self._keys.control_key(fleet), self._keys.engine_key(fleet))
        endpoints = _endpoints(objects, of_proxies, control, engine_key)
        wanted = self._wanted(fleet, objects)
        if sure:  # what another operator met when it applied children is so until they are applied anew
            before = (each for each in reading.status_of(body).problems if each.reason in NOT_AS_ASKED)
            met = (Problem(ProblemReason(each.reason), each.message, each.pod) for each in before)
            self._problems = tuple({*self._problems, *met})
        problems = (*wanted.problems, *keys.problems, *control.problems, *engine_key.problems)
        async with self._without_turn():
            if not polled:
                await self._poll(fleet, objects, endpoints)
            lists = await self._shared.executor.gateways.lists(endpoints.gateways, endpoints.gateway_key)
        control_key = None if control.key is None else content_hash(control.key)
        observed = self._observe(body, fleet, objects, wanted, control_key)
        gateway = replace(observed.gateway, lists=lists)
        observed = replace(observed, gateway=gateway, problems=self._met(problems))
        decision, new = self._decide(fleet.spec, observed)
        if not sure and decision.disturbs(observed):
            return PassResult(next_in=0.0, unsure=True)
        self._shared.metrics.saw((self._namespace, self._name), new, observed.pods, fleet.spec.memory.rss_budget)
        written = await self._write(body, new)
        if written is None:  # it has changed meanwhile: look again before anything is done
            return PassResult(next_in=REQUEUE_SOON, touched={KIND})
        changed = await self._bring_about(fleet, objects, wanted, decision, control_key)
        rotating = keys.key is not None and len(keys.key.keys) > 1
        settings = objects.child("ConfigMap", fleet.settings)
        actions = (*decision.actions, *refreshes(observed.pods, settings, objects.secret, rotating=rotating))
        await self._shared.executor.execute(fleet, actions, endpoints, check=self._check, now=self._now())
        touched = changed | ({"Pod"} if actions else frozenset())
        if reading.status_of(written) != observed.status or actions or self._met(problems) != observed.problems:
            return PassResult(next_in=REQUEUE_SOON, touched=touched, body=written)
        return PassResult(next_in=self._interval(fleet.spec, decision.requeue_at), touched=touched, body=written)

    @contextlib.asynccontextmanager
    async def _without_turn(self) -> AsyncIterator[None]:
        """Another fleet's pass may go on until the block ends."""
        await self._turn.aclose()
        try:
            yield
        finally:
            await self._turn.enter_async_context(self._turns)

    def _decide(self, spec: FleetSpec, observed: ObservedFleet) -> tuple[Decision, FleetStatus]:
        """With no other pass in between: what others hold is read, and what this one takes is noted."""
        slots, now = self._shared.slots, self._now()
        observed = replace(observed, other_fleets=slots.other_fleets(self.key, now))
        decision = decide(spec, observed, now)
        slots.note(self.key, held=decision.held, slot_requests=decision.slot_requests)
        self._audit = decision.audit
        return decision, status(spec, observed, decision, now)

    def _met(self, problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
        """With what came of writing children; after this pass did that, its status may not say all of it yet."""
        return (*problems, *self._problems, *self._shared.others.now.problems())

    def _interval(self, spec: FleetSpec, requeue_at: float | None) -> float:
        """Memory is sampled while there are proxies; what was decided, or fought over, may be due before."""
        sampled_at = self._began + (RESYNC if spec.suspend else spec.memory.interval)
        due = [at for at in (sampled_at, requeue_at, self._again_at) if at is not None]
        return max(REQUEUE_SOON, min(due) - self._now())

    async def _write(self, body: Object, new: FleetStatus) -> Object | None:
        lease = f"{self._shared.operator.lease_namespace}/{self._shared.operator.lease_name}"
        new = new.model_copy(update={"operator": lease, "operator_version": self._shared.version})
        if new == reading.status_of(body):
            return body
        failpoints.reach(failpoints.STATUS_UNWRITTEN)
        return await self._shared.api.write_status(body, new.model_dump(mode="json", by_alias=True, exclude_none=True))

    # What is read of pods and proxies

    async def _poll(self, fleet: Fleet, there: FleetObjects, endpoints: Endpoints) -> None:
        """Ask every proxy that can be reached for its figures, and fold them into its samples; but those that were
        silent a moment ago."""
        uids = {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in there.proxies}
        self._polled = {uid: self._polled.get(uid, observe.NOT_POLLED) for uid in uids.values()}
        clock = asyncio.get_running_loop().time

        async def ask(name: str, url: str, key: str) -> None:
            before, began = self._polled[uids[name]], clock()
            if began < before.again_at:
                return
            stats, refused = None, False
            try:
                stats = await self._shared.executor.proxies.stats(url, key, audit=name in self._audit)
            except KeyRefused:
                refused = True
            drain = before.drain if stats is None else stats.drain
            over = drain is not None and drain.expires is not None and drain.expires <= self._now()
            unanswered = 0 if stats is not None or refused else before.unanswered + 1
            self._polled[uids[name]] = Polled(
                stats=stats,
                key_refused=refused,
                unanswered=unanswered,
                again_at=clock() + (clock() - began) * min(unanswered / 2, LONGEST_REST),
                drain=None if over else drain,
                run=sampled(before.run, stats, fleet.spec.memory, self._now()),
            )

        await asyncio.gather(*(ask(name, *taken) for name, taken in endpoints.proxies.items()))

    # What follows from the spec and what was read

    def _wanted(self, fleet: Fleet, there: FleetObjects) -> DesiredState:
        settings = settings_of.proxy_settings(fleet, self._shared.operator, peers=fleet.spec.proxies.replicas)
        problems = tuple(_of_unknown(fleet.unknown, self._shared.version))
        try:
            template = proxy_children.template(fleet, self._shared.operator, settings)
        except TemplateInvalid as error:
            stays = observe.workload(there.child("StatefulSet", fleet.proxies), there.warnings, now=self._now())
            problems = (*problems, Problem(ProblemReason.TEMPLATE_INVALID, str(error)))
            hash_there = "" if stays is None else stays.template_hash
            return DesiredState(template=None, template_hash=hash_there, problems=problems)
        made = template["metadata"]["annotations"][names.TEMPLATE_HASH]
        return DesiredState(template=template, template_hash=made, problems=problems)

    def _observe(
        self, body: Object, fleet: Fleet, there: FleetObjects, wanted: DesiredState, control_key: str | None
    ) -> ObservedFleet:
        now, spec, ungrown = self._now(), fleet.spec, self._resizer.ungrown
        claims = observe.claims(there.claims, spec.proxies.storage.capacity, there.warnings, now=now)
        gateway = self._deployment(fleet, there, fleet.gateway, there.gateways, control_key)
        return ObservedFleet(
            namespace=fleet.namespace,
            name=fleet.name,
            generation=fleet.generation,
            template_hash=wanted.template_hash,
            status=reading.status_of(body),
            pods=observe.proxy_pods(there.proxies, self._polled, there.lost_nodes, there.cordoned_nodes),
            workload=observe.workload(there.child("StatefulSet", fleet.proxies), there.warnings, now=now),
            claims=tuple(replace(each, message=each.message or ungrown.get(each.name, "")) for each in claims),
            gateway=ObservedGateway(deployment=gateway),
            engines=self._engines(fleet, there),
            node_local=there.node_local,
            most_disruptions=self._shared.operator.max_concurrent_disruptions,
            allow_loss=_allowed_losses(body),
            settings_since=_settings_since(there.child("ConfigMap", fleet.settings), fleet.generation),
            endpoint=spec.endpoint.public_url or network.address(fleet, self._shared.operator),
            selector=",".join(f"{name}={value}" for name, value in selector(fleet, Component.PROXY).items()),
        )

    def _engines(self, fleet: Fleet, there: FleetObjects) -> ObservedEngines:
        own, source = fleet.spec.engine is not None, fleet.spec.gateway.engines
        if (urls := engines_by_address(fleet.spec)) is not None:
            return ObservedEngines(urls=tuple(urls))
        if there.engines is None:
            return ObservedEngines()
        port = names.ENGINE_PORT if source is None else source.port
        return ObservedEngines(
            urls=observe.engine_urls(there.engines, port),
            ready=observe.ready_engine_urls(there.engines, port),
            deployment=self._deployment(fleet, there, fleet.engine, there.engines) if own else None,
        )

    def _deployment(
        self, fleet: Fleet, there: FleetObjects, name: str, pods: Sequence[Object], control_key: str | None = None
    ) -> ObservedDeployment | None:
        found = there.child("Deployment", name)
        wanted = None if found is None else _anew(found, fleet, self._shared.operator, control_key)
        seen = observe.deployment(found, pods, there.lost_nodes, wanted=wanted)
        if seen is None or wanted is None:
            return seen
        keyless = name == fleet.gateway and control_key is None
        return replace(seen, refused=keyless or self._was_refused(name, wanted))

    def _was_refused(self, name: str, wanted: Object) -> bool:
        """True for REFUSED_FOR seconds after the API server refused that template."""
        refused, template = self._refused.get(name), templates.note(wanted, names.TEMPLATE_HASH)
        if refused is None or refused.hash != template or self._now() - refused.at > REFUSED_FOR:
            self._refused.pop(name, None)
        return name in self._refused

    # What is written

    async def _bring_about(
        self, fleet: Fleet, there: FleetObjects, wanted: DesiredState, decision: Decision, control_key: str | None
    ) -> Set[str]:
        """The kinds of which something was written. Without a key of their control plane gateways stay as they are."""
        stateful_set = there.child("StatefulSet", fleet.proxies)
        claims = None if stateful_set is None else stateful_set["spec"].get("volumeClaimTemplates")
        counts = every.Replicas(
            proxies=decision.replicas, gateways=decision.gateway_replicas, engines=decision.engine_replicas or 0
        )
        settings = settings_of.proxy_settings(
            fleet, self._shared.operator, peers=decision.peers, lost=decision.lost_proxies
        )
        asked_for = [
            *every.parts(fleet, self._shared.operator, settings, decision.evictable),
            *every.workloads(fleet, self._shared.operator, wanted.template, counts, claims, control_key),
        ]
        made, not_made, problems = _made(asked_for)
        for update in decision.updates:
            made = [_settled(each, there.child("Deployment", update.name), update) for each in made]
        kept = [*not_made, ("Deployment", fleet.gateway), ("StatefulSet", fleet.proxies)]
        if not decision.updates[0].apply:
            kept.append(("Service", fleet.engines))  # the gateway looks its engines up there
        outcome = await self._children.bring_about(fleet, made, there.children, kept=kept, now=self._now())
        await self._resizer.grow_claims(fleet.namespace, there.claims, fleet.spec.proxies.storage.capacity)
        if wanted.template is not None:
            await self._resizer.grow_memory(fleet.namespace, there.proxies, wanted.template)
        self._note_refusals(made, outcome)
        waiting = [each.problem for each in self._refused.values() if each.problem not in outcome.problems]
        self._problems, self._again_at = (*problems, *outcome.problems, *waiting), outcome.again_at
        if outcome.changed:
            extra = {"fleet": self.key, "generation": fleet.generation}
            logger.info("applied %s", ", ".join(outcome.changed), extra=extra)
            failpoints.reach(failpoints.TEMPLATE_APPLIED)
        return outcome.touched

    def _note_refusals(self, made: Sequence[Object], outcome: Outcome) -> None:
        for each in made:
            kind, name = identity(each)
            if kind == "Deployment" and (problem := outcome.refused.get((kind, name))) is not None:
                refused_hash = templates.note(each, names.TEMPLATE_HASH)
                self._refused[name] = RefusedTemplate(refused_hash, problem, self._now())


def _failed(error: Exception) -> Problem:
    if isinstance(error, ApiRefused) and error.status == 403:
        message = f"the operator lacks a right that it needs; see its ClusterRole or Role ({error.message})"
        return Problem(ProblemReason.PERMISSION_DENIED, message)
    what = f"{type(error).__name__}: {error}"[:MOST_SAID]
    message = f"the operator can't carry this fleet out, and its log says more ({what})"
    return Problem(ProblemReason.PASS_FAILED, message)


def _made(asked_for: Sequence[every.Part]) -> tuple[list[Object], list[Id], list[Problem]]:
    """The manifests; those that can't be made from the spec stay as they are, and are named."""
    made: list[Object] = []
    kept: list[Id] = []
    problems: list[Problem] = []
    for part in asked_for:
        try:
            made.append(part.make())
        except (TemplateInvalid, FieldInvalid) as error:
            kept.append((part.kind, part.name))
            problems.append(Problem(error.reason, str(error)))
    return made, kept, problems


def _settled(made: Object, live: Object | None, update: Update) -> Object:
    """The manifest as it is to be applied now, if it is that Deployment's; others as they are."""
    if identity(made) != ("Deployment", update.name):
        return made
    if live is not None and not update.apply:
        made = templates.kept(made, live)
    return templates.updating(made, None if update.since is None else text_of(update.since))


def _of_unknown(fields: Sequence[str], version: str) -> Iterator[Problem]:
    if fields:
        more = len(fields) - MOST_NAMED
        named = ", ".join(fields[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        message = f"this operator ({version}) does not know {named}, which has no effect until it is upgraded"
        yield Problem(ProblemReason.FIELDS_UNKNOWN, message)


def _anew(deployment: Object, fleet: Fleet, operator: OperatorSettings, control_key: str | None) -> Object | None:
    """What the spec makes of that Deployment now, but for its replicas; None where it can't be made.

    Without a `control_key` it is that of the pods that run.
    """
    replicas = deployment["spec"]["replicas"]
    counts = every.Replicas(proxies=0, gateways=replicas, engines=replicas)
    key = (templates.control_key_of(deployment) or "") if control_key is None else control_key
    parts = every.workloads(fleet, operator, None, counts, None, key)
    part = next(each for each in parts if (each.kind, each.name) == identity(deployment))
    try:
        return templates.updating(part.make(), templates.note(deployment, templates.UPDATING_SINCE))
    except TemplateInvalid:
        return None


def _endpoints(
    there: FleetObjects, keys: Mapping[str, str], control: FoundKey[str], engine_key: FoundKey[str]
) -> Endpoints:
    pods = {pod["metadata"]["name"]: pod for pod in there.proxies}
    urls = {name: url for name, pod in pods.items() if (url := observe.address_of(pod, names.PROXY_PORT))}
    return Endpoints(
        pods=pods,
        proxies={name: (url, keys[name]) for name, url in urls.items() if name in keys},
        gateways=[url for pod in there.gateways if (url := observe.address_of(pod, names.GATEWAY_PORT))],
        gateway_key=control.key,
        engine_key=engine_key.key,
    )


def _allowed_losses(body: Mapping[str, Any]) -> frozenset[str]:
    named = (body["metadata"].get("annotations") or {}).get(ALLOW_LOSS, "")
    return frozenset(filter(None, (name.strip() for name in named.split(","))))


def _settings_since(config_map: Object | None, generation: int) -> float | None:
    """When the settings of that generation were written: the API server notes the time of our last change."""
    if config_map is None or (config_map["metadata"].get("annotations") or {}).get(names.GENERATION) != str(generation):
        return None
    managed = config_map["metadata"].get("managedFields") or ()
    times = (each.get("time", "") for each in managed if each.get("manager") == names.OPERATOR)
    return max(map(seconds_of, times), default=None)
