"""Which weights, and whether the fleet is paused: what a proxy knows, and how two proxies agree. Pure.

Both halves only ever grow in an order of their own, so what two proxies know joins to the newer of each, and a
message that comes late, twice or out of order changes nothing. That is all the fencing there is:

    weights   (run, version): a version grows within its run, and a greater run may begin at any version
    gate      (epoch, paused before released): each pause is a greater epoch, and a release ends its own
"""

from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from rolloutfleet.wire import LAST_EPOCH, LAST_RUN, LeftOpen, PauseMode
from rolloutfleet_proxy.domain.errors import EpochStale, InvalidParameter, Stale, VersionBackwards
from rolloutfleet_proxy.domain.recovery import DROP

KEPT_EPOCHS: Final = 2**20
"""The last ones, to which no call leaps: one that did would leave no epoch for the next pause."""
HOLDING_MODES: tuple[PauseMode, ...] = ("retract", "in_place")
"""Modes that leave calls in flight at the engines."""

_Run = Annotated[int, Meta(ge=0, le=LAST_RUN)]
_Version = Annotated[int, Meta(ge=0, le=2**31 - 1)]
"""Exported as int32."""


class _Told(msgspec.Struct):
    """A state as JSON."""

    run: _Run
    version: _Version
    recoveries: tuple[tuple[_Run, _Version, str], ...]
    epoch: Annotated[int, Meta(ge=0, le=LAST_EPOCH)]
    mode: PauseMode | None
    since: float
    open: dict[str, LeftOpen] = {}
    flushed: _Version | None = None


@dataclass(frozen=True, slots=True)
class Recovery:
    """A run that began at an older checkpoint: what is newer than `version` is of weights that no longer are."""

    run: int
    version: int
    newer: str
    """drop or keep."""
    open: LeftOpen = field(default="keep", compare=False)
    """What becomes of the sessions that earlier runs left open. Proxies of a release that does not know of it tell the
    recovery without it, so it is no part of which recovery this is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """The half that says which weights."""

    run: int = 0
    version: int = 0
    flushed: int = 0
    """The version at which the engines' prefix caches were last flushed; lower than `version`, they may hold what older
    weights computed."""
    recoveries: tuple[Recovery, ...] = ()
    """One for each run that recovered, by run."""

    @property
    def cache_key(self) -> str:
        """SGLang's `extra_key` of what these weights compute."""
        return f"{self.run}.{self.version}"

    @property
    def may_meet_older_cache(self) -> bool:
        """Whether a prompt may meet what older weights computed, unless keys keep it apart."""
        return self.flushed < self.version


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """The half that says whether calls may be submitted. `since` is for people: seconds since the epoch."""

    epoch: int = 0
    mode: PauseMode | None = None
    """How the engines were paused; None while calls are submitted."""
    since: float = 0.0

    @property
    def paused(self) -> bool:
        return self.mode is not None

    @property
    def order(self) -> tuple[int, bool]:
        return self.epoch, not self.paused


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightState:
    versions: Versions = field(default_factory=Versions)
    gate: Gate = field(default_factory=Gate)

    def as_json(self) -> dict[str, Any]:
        """The form in which it is stored and passed between proxies."""
        versions, gate = self.versions, self.gate
        return {
            "run": versions.run,
            "version": versions.version,
            "flushed": versions.flushed,
            "recoveries": [[one.run, one.version, one.newer] for one in versions.recoveries],
            "open": {str(one.run): one.open for one in versions.recoveries if one.open != "keep"},
            "epoch": gate.epoch,
            "mode": gate.mode,
            "since": gate.since,
        }

    def shown(self) -> dict[str, Any]:
        """The form in which users see it."""
        gate = self.gate
        return {
            "run": self.versions.run,
            "version": self.versions.version,
            "epoch": gate.epoch,
            "paused": gate.paused,
            "mode": gate.mode,
            "paused_since": gate.since if gate.paused else None,
        }

    @staticmethod
    def from_json(value: dict[str, Any]) -> "WeightState":
        """Raises ValueError where it is not of that form."""
        try:
            told = msgspec.convert(value, _Told)
        except msgspec.ValidationError as error:
            raise ValueError(f"no state of weights, whose numbers are whole numbers in bounds: {error}") from None
        recoveries = (
            Recovery(run, version, newer, told.open.get(str(run), "keep")) for run, version, newer in told.recoveries
        )
        flushed = told.version if told.flushed is None else told.flushed
        return WeightState(
            versions=Versions(run=told.run, version=told.version, flushed=flushed, recoveries=tuple(recoveries)),
            gate=Gate(epoch=told.epoch, mode=told.mode, since=told.since),
        )


def joined(known: WeightState, heard: WeightState) -> WeightState:
    """The newer of each half; what is equal stays as known."""
    return WeightState(
        versions=_joined_versions(known.versions, heard.versions),
        gate=heard.gate if heard.gate.order > known.gate.order else known.gate,
    )


def paused(state: WeightState, *, epoch: int, mode: PauseMode, now: float) -> WeightState:
    """The state that a pause of this epoch makes; the same one again changes nothing. Raises Stale, and
    InvalidParameter."""
    gate = state.gate
    _refuse_leap(epoch, gate)
    if gate.paused and (epoch, mode) == (gate.epoch, gate.mode):
        return state
    if epoch <= gate.epoch:
        raise stale_epoch(epoch, gate)
    return replace(state, gate=Gate(epoch=epoch, mode=mode, since=now))


def released(state: WeightState, *, epoch: int, now: float) -> WeightState:
    """The state once the pause of this epoch is over, heard of before or not. Raises Stale, InvalidParameter."""
    _refuse_leap(epoch, state.gate)
    if epoch < state.gate.epoch:
        raise stale_epoch(epoch, state.gate)
    if epoch == state.gate.epoch and not state.gate.paused:
        return state
    return replace(state, gate=Gate(epoch=epoch, since=now))


def advanced(state: WeightState, *, version: int, epoch: int | None, flush_cache: bool | None = None) -> WeightState:
    """The state at a version that is no older. `flush_cache` is that of `wire.SetVersion`. Raises Stale."""
    known = state.versions
    if epoch is not None and epoch < state.gate.epoch:
        raise stale_epoch(epoch, state.gate)
    if version < known.version:
        raise stale_version(version, known)
    if flush_cache is None:
        flush_cache = version > known.version and state.gate.mode != "in_place"
    flushed = version if flush_cache else known.flushed
    return replace(state, versions=replace(known, version=version, flushed=flushed))


def recovered(state: WeightState, recovery: Recovery) -> WeightState:
    """The state in a new run; one that was heard of before changes nothing. Raises Stale."""
    known = state.versions
    same = _same(known, recovery)
    if same is not None and same.open == recovery.open:
        return state
    if recovery.run <= known.run:
        raise VersionBackwards(
            f"The current run is {known.run}: a recovery needs a greater one than that, not {recovery.run}.",
            {"version": known.version, "run": known.run},
        )
    recoveries = (*known.recoveries, recovery)
    versions = Versions(run=recovery.run, version=recovery.version, flushed=recovery.version, recoveries=recoveries)
    return replace(state, versions=versions)


def too_far(state: WeightState, recovery: Recovery) -> bool:
    """Whether a recovery drops what is newer than less than half of the version: it may be a mistake, as 0 is always.

    One that was heard of before is not: what it drops has gone.
    """
    known = state.versions
    if recovery.newer != DROP or _same(known, recovery) is not None:
        return False
    return 2 * recovery.version < max(1, known.version)


def next_epoch(states: list[WeightState]) -> int:
    """The epoch of a pause that names none. Raises InvalidParameter where there is no further one."""
    newest = max(state.gate.epoch for state in states)
    if newest >= LAST_EPOCH:
        raise InvalidParameter(
            "epoch", f"The fleet is at epoch {newest}, and none is above {LAST_EPOCH}: there is no next one."
        )
    return newest + 1


def _refuse_leap(epoch: int, gate: Gate) -> None:
    if epoch > max(LAST_EPOCH - KEPT_EPOCHS, gate.epoch + 1):
        raise InvalidParameter(
            "epoch",
            f"{epoch} is one of the last {KEPT_EPOCHS}, which only follow on one another: the current one is "
            f"{gate.epoch}.",
        )


def stale_epoch(asked: int, gate: Gate) -> Stale:
    state = f"paused ({gate.mode})" if gate.paused else "not paused"
    return EpochStale(
        f"Epoch {asked} is taken or over: the current one is {gate.epoch}, {state}.",
        {"epoch": gate.epoch, "paused": gate.paused},
    )


def stale_version(asked: int, known: Versions) -> Stale:
    return VersionBackwards(
        f"The weights are at version {known.version} of run {known.run}, so {asked} would go back. "
        "A trainer that recovered to an older checkpoint says so with POST /recover and a new run.",
        {"version": known.version, "run": known.run},
    )


def _same(known: Versions, recovery: Recovery) -> Recovery | None:
    return next((one for one in known.recoveries if one == recovery), None)


def _joined_versions(known: Versions, heard: Versions) -> Versions:
    newer = heard if (heard.run, heard.version) > (known.run, known.version) else known
    in_order = sorted({*known.recoveries, *heard.recoveries}, key=lambda one: (one.run, one.version, one.newer))
    recoveries = tuple({one.run: one for one in in_order}.values())
    flushed = max(known.flushed, heard.flushed) if known.run == heard.run else newer.flushed
    return replace(newer, flushed=flushed, recoveries=recoveries)
