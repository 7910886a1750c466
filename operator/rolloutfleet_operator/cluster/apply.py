"""Creates, updates and removes the children of a fleet: server-side apply where they differ from the desired manifest.

A child is applied when the hash of its desired manifest is not the one in its annotation, or when it is not as our last
apply left it (its generation, or its resourceVersion where its kind has none). Applying an unchanged manifest changes
nothing at the API server. If another client changes the same fields repeatedly, they are reset with growing delays, and
the status names that client.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from rolloutfleet.backoff import Backoff
from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object
from rolloutfleet_operator.cluster.children.hashes import content_hash
from rolloutfleet_operator.cluster.children.names import APPLIED_HASH, MANAGED_BY, OPERATOR, Fleet
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason

Id = tuple[str, str]
"""Kind and name, within the fleet's namespace."""

CONFLICTS_REMEMBERED: Final = 600.0
"""Seconds after which a change by another counts no more."""
CONFLICTS_ALLOWED: Final = 3
"""So many are put back at once; then it is left alone for longer and longer."""
CONFLICT_BACKOFF: Final = Backoff(first=10.0, longest=CONFLICTS_REMEMBERED)

PATHS: Final[Mapping[str, str]] = {
    "proxy": "spec.proxies.podTemplate",
    "gateway": "spec.gateway.podTemplate",
    "engine": "spec.engine.podTemplate",
}
"""Where the pods of each workload (by the end of its name) are described in the fleet."""


class ApplyReason(StrEnum):
    MISSING = "missing"
    CHANGED = "changed"
    UNSURE = "unsure"
    """This process has not applied it yet, so it can't tell whether somebody changed it."""
    EDITED = "edited"


@dataclass(slots=True)
class LastApply:
    """What is remembered of one child. Losing it costs one apply that changes nothing."""

    mark: int = -1
    """Generation or resourceVersion that our last apply returned."""
    uid: str = ""
    conflicts: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Outcome:
    problems: list[Problem] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    """What was written, for the log."""
    refused: dict[Id, Problem] = field(default_factory=dict)
    """Children that the API server refused, and why; it is among the problems, too."""
    again_at: float | None = None
    """When a child that is fought over is to be looked at again."""

    @property
    def touched(self) -> frozenset[str]:
        """The kinds of what was written."""
        return frozenset(each.partition("/")[0] for each in self.changed)


def identity(manifest: Mapping[str, Any]) -> Id:
    return manifest["kind"], manifest["metadata"]["name"]


def mark_of(live: Mapping[str, Any]) -> int:
    """A number that grows with every change of the object by anybody (but of its status, where it has a generation)."""
    meta = live["metadata"]
    return int(meta.get("generation") or meta["resourceVersion"])


def due(wanted_hash: str, live: Mapping[str, Any] | None, last: LastApply) -> ApplyReason | None:
    """Why a child must be applied; None where it is as it should be, as far as what was read tells."""
    if live is None:
        return ApplyReason.MISSING
    meta = live["metadata"]
    if meta["uid"] == last.uid and mark_of(live) < last.mark:
        return None  # read before our last apply
    if (meta.get("annotations") or {}).get(APPLIED_HASH) != wanted_hash:
        return ApplyReason.CHANGED
    if meta["uid"] != last.uid:
        return ApplyReason.UNSURE
    is_watched = (meta.get("labels") or {}).get(MANAGED_BY) == OPERATOR
    return None if is_watched and mark_of(live) == last.mark else ApplyReason.EDITED


def carries(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether that is what was last applied there. (What others changed since is put back by `Children`.)"""
    applied = (live["metadata"].get("annotations") or {}).get(APPLIED_HASH)
    return bool(applied == content_hash(wanted))


def owned(live: Mapping[str, Any], uid: str) -> bool:
    """Whether it belongs to the object of that uid."""
    references = live["metadata"].get("ownerReferences") or ()
    return any(each.get("uid") == uid for each in references)


class Children:
    """The children of one fleet, as this process knows them."""

    def __init__(self, api: Api, check: Callable[[], None]) -> None:
        """`check` raises where this operator may not act any more."""
        self._api, self._check = api, check
        self._last_applies: dict[Id, LastApply] = {}

    async def bring_about(
        self, fleet: Fleet, wanted: Sequence[Object], there: Mapping[Id, Object], *, kept: Iterable[Id], now: float
    ) -> Outcome:
        """Apply what is wanted, remove what is there and not `kept`. Raises ApiUnreachable.

        `there` are the children by label, namespace and owner; `kept` are those that stay though they could not be
        made from the spec now. Before each write it asks `check`, and raises what that does.
        """
        outcome = Outcome()
        for manifest in wanted:
            await self._one(fleet, manifest, there.get(identity(manifest)), outcome, now)
        stays = {*map(identity, wanted), *kept}
        for each, live in there.items():
            if each not in stays and "deletionTimestamp" not in live["metadata"]:
                await self._remove(fleet, each, live, outcome)
        return outcome

    async def _one(self, fleet: Fleet, manifest: Object, live: Object | None, outcome: Outcome, now: float) -> None:
        kind, name = identity(manifest)
        last = self._last_applies.setdefault((kind, name), LastApply())
        wanted_hash = content_hash(manifest)
        why = due(wanted_hash, live, last)
        if why is None:
            return
        if why is ApplyReason.EDITED and (until := _pause(last, now)) > now:
            outcome.again_at = min(until, outcome.again_at or until)
            outcome.problems.append(_conflict(kind, name, live))
            return
        stamped = _stamped(manifest, wanted_hash)
        try:
            if why is ApplyReason.MISSING and await self._taken(fleet, kind, name):
                outcome.problems.append(name_taken(kind, name, "delete it, or rename the fleet"))
                return
            if why in (ApplyReason.MISSING, ApplyReason.CHANGED) and "template" in manifest.get("spec", {}):
                await self._api.apply(stamped, dry_run=True)
            self._check()
            answer = await self._api.apply(stamped)
        except ApiRefused as refused:
            outcome.refused[kind, name] = refusal(kind, name, refused)
            outcome.problems.append(outcome.refused[kind, name])
            return
        self._note(last, why, live, answer, outcome, now)

    def _note(
        self, last: LastApply, why: ApplyReason, live: Object | None, answer: Object, outcome: Outcome, now: float
    ) -> None:
        last.mark, last.uid = mark_of(answer), answer["metadata"]["uid"]
        if live is not None and answer["metadata"]["resourceVersion"] == live["metadata"]["resourceVersion"]:
            return
        kind, name = identity(answer)
        outcome.changed.append(f"{kind}/{name}")
        if why is ApplyReason.EDITED:
            last.conflicts = [at for at in last.conflicts if now - at < CONFLICTS_REMEMBERED] + [now]

    async def _taken(self, fleet: Fleet, kind: str, name: str) -> bool:
        """Whether somebody else's object has that name."""
        found = await self._api.get(kind, fleet.namespace, name)
        return found is not None and not owned(found, fleet.uid)

    async def _remove(self, fleet: Fleet, child: Id, live: Object, outcome: Outcome) -> None:
        kind, name = child
        self._check()
        try:
            await self._api.delete(kind, fleet.namespace, name, uid=live["metadata"]["uid"])
        except ApiRefused as refused:
            outcome.problems.append(refusal(kind, name, refused))
            return
        self._last_applies.pop(child, None)
        outcome.changed.append(f"{kind}/{name} removed")


def _stamped(manifest: Object, wanted_hash: str) -> Object:
    meta = manifest["metadata"]
    annotations = {**(meta.get("annotations") or {}), APPLIED_HASH: wanted_hash}
    return {**manifest, "metadata": {**meta, "annotations": annotations}}


def _pause(last: LastApply, now: float) -> float:
    """Until when a child that others keep changing is left alone."""
    recent = [at for at in last.conflicts if now - at < CONFLICTS_REMEMBERED]
    if len(recent) < CONFLICTS_ALLOWED:
        return 0.0
    return recent[-1] + CONFLICT_BACKOFF.after(len(recent) - CONFLICTS_ALLOWED + 1)


def _conflict(kind: str, name: str, live: Object | None) -> Problem:
    others = sorted(
        {
            each.get("manager", "?")
            for each in ((live or {}).get("metadata", {}).get("managedFields") or ())
            if each.get("manager") != OPERATOR and each.get("subresource") != "status"
        }
    )
    who = f" ({', '.join(others)})" if others else ""
    message = f"{kind} {name} is changed again and again by another{who}; change the fleet instead"
    return Problem(ProblemReason.CHILD_FOUGHT_OVER, message)


def name_taken(kind: str, name: str, remedy: str) -> Problem:
    message = f"there is a {kind} {name} that is not this fleet's; it is left alone: {remedy}"
    return Problem(ProblemReason.NAME_TAKEN, message)


def refusal(kind: str, name: str, refused: ApiRefused) -> Problem:
    """Why the API server refused a child, in the words of the fleet."""
    field_path = _of_the_template(kind, name, refused)
    if field_path is not None:
        return Problem(ProblemReason.TEMPLATE_INVALID, field_path)
    if refused.status == 403 and "exceeded quota" in refused.message:
        return Problem(ProblemReason.QUOTA_EXCEEDED, f"{kind} {name}: {refused.message}")
    if refused.status == 403:
        return Problem(ProblemReason.PERMISSION_DENIED, f"{kind} {name}: {refused.message}")
    return Problem(ProblemReason.CHILD_REFUSED, f"{kind} {name}: {refused.message}")


_UNDECLARED: Final = re.compile(r"\.spec\.template(\S*?): (field not declared in schema|.*expected .*)")


def _of_the_template(kind: str, name: str, refused: ApiRefused) -> str | None:
    """The field of the podTemplate that was refused, and why; None where it was something else."""
    if kind not in ("StatefulSet", "Deployment"):
        return None
    path = PATHS[name.rpartition("-")[2]]
    undeclared = _UNDECLARED.search(refused.message)
    if undeclared is not None:
        what = undeclared.group(2)
        return f"{path}{undeclared.group(1)}: {'no such field' if 'not declared' in what else what}"
    for cause in refused.causes:
        if cause.field.startswith("spec.template."):
            return f"{path}{cause.field.removeprefix('spec.template')}: {cause.message}"
    return None
