"""Pause, continue, version and recovery over several proxies, step by step.

The proxy that gets the call leads. It first asks everyone how things stand, so that what would be refused changes
nothing; then it does the step itself, durably, and only then tells the others. A proxy that starts meanwhile listens
before it asks around, so it either hears of the step or finds it at the leader's.

A proxy that can't be reached does not stop a step: it is named in the answer, and when it comes back it takes what
the others know. One that answers and does not pause ends a pause: it would go on generating. Without fleet scope the
leader is the fleet.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Protocol, TypeVar

from rolloutfleet import errors as codes
from rolloutfleet.wire import LoadFromDisk, PauseMode
from rolloutfleet_proxy.cluster.peers import Peers
from rolloutfleet_proxy.domain import errors
from rolloutfleet_proxy.domain import weights as weight_state
from rolloutfleet_proxy.domain.errors import DomainError, Stale
from rolloutfleet_proxy.domain.recovery import Counts
from rolloutfleet_proxy.domain.weights import Gate, Recovery, Versions, WeightState
from rolloutfleet_proxy.engine.client import PauseMode as EnginePause
from rolloutfleet_proxy.services.weights import WeightService
from rolloutfleet_proxy.store.weights import AtStake
from rolloutfleet_proxy.store.writer import StoreClosed
from rolloutfleet_proxy.telemetry import logger

T = TypeVar("T")

STATE_PATH: Final = "/peers/weights"
JOIN_PATH: Final = "/peers/weights/join"
SETTLED_PATH: Final = "/peers/weights/settled"
RECOVERED_PATH: Final = "/peers/weights/recovered"
AT_STAKE_PATH: Final = "/peers/weights/at-stake"

TIMEOUT: Final = 5.0
"""Seconds for an answer; long enough for a proxy that is being restarted in place."""

_NOT_REACHED = frozenset((codes.OWNER_UNREACHABLE, codes.OWNER_UNAVAILABLE, codes.DRAINING))
"""Codes that say that nobody was there, or one that has ended its work and goes: its successor asks around first."""

ENGINE_TIMEOUT = 10.0
"""Seconds for the engines to confirm that they go on."""


class NotTaken(Exception):
    """Proxies that answered, and do not pause: why, by ordinal."""

    def __init__(self, refusals: dict[int, DomainError]) -> None:
        super().__init__()
        self.refusals = refusals


class FleetMember(Protocol):
    """Another proxy of the fleet. Every method raises DomainError where it does not answer as it should."""

    @property
    def ordinal(self) -> int: ...

    async def state(self) -> WeightState: ...

    async def join(self, *, gate: Gate | None = None, versions: Versions | None = None) -> WeightState:
        """Tell it what is known; returns what it knows then, which may be newer."""

    async def settled(self, *, epoch: int, timeout: float) -> None:
        """As PauseGate.settled."""

    async def at_stake(self, *, run: int, version: int) -> AtStake:
        """As WeightService.at_stake."""

    async def recovery_counts(self, run: int) -> Counts:
        """As WeightService.recovery_counts."""


@dataclass(frozen=True, slots=True)
class RemoteMember:
    """Another proxy. `credentials` are the caller's own headers, which every proxy takes alike."""

    peers: Peers
    ordinal: int
    credentials: Mapping[str, str]

    async def state(self) -> WeightState:
        return await self._ask(WeightState.from_json, "GET", STATE_PATH)

    async def join(self, *, gate: Gate | None = None, versions: Versions | None = None) -> WeightState:
        told = WeightState(gate=gate or Gate(), versions=versions or Versions())
        return await self._ask(WeightState.from_json, "POST", JOIN_PATH, told.as_json())

    async def settled(self, *, epoch: int, timeout: float) -> None:
        asked = {"epoch": epoch, "timeout": timeout}
        await self._ask(lambda answer: None, "POST", SETTLED_PATH, asked, timeout=timeout + TIMEOUT)

    async def at_stake(self, *, run: int, version: int) -> AtStake:
        return await self._ask(lambda answer: AtStake(**answer), "GET", f"{AT_STAKE_PATH}?run={run}&version={version}")

    async def recovery_counts(self, run: int) -> Counts:
        return await self._ask(lambda answer: Counts(**answer), "GET", f"{RECOVERED_PATH}?run={run}")

    async def _ask(
        self, read: Callable[[Any], T], method: str, path: str, content: Any = None, *, timeout: float = TIMEOUT
    ) -> T:
        """The answer as `read` reads it. Raises OwnerUnavailable where it can't, and as `Peers.ask`."""
        answer = await self.peers.ask(
            self.ordinal, method, path, headers=self.credentials, content=content, timeout=timeout
        )
        try:
            return read(answer)
        except (LookupError, TypeError, ValueError):
            raise errors.OwnerUnavailable(self.ordinal, "its answer is not understood") from None


class Engines(Protocol):
    """All engines at once. A command returns those that did not confirm it, by address, and why."""

    async def engines(self) -> Sequence[str]: ...

    async def pause(self, mode: EnginePause) -> dict[str, str]: ...

    async def resume(self) -> dict[str, str]: ...

    async def load(self, path: str, version: int, *, flush_cache: bool, timeout: float) -> dict[str, str]: ...


class Coverage:
    """Which other proxies took part in every step so far, and which did not, and why."""

    def __init__(self, members: Sequence[FleetMember]) -> None:
        self.members = {member.ordinal: member for member in members}
        self.failed: dict[int, DomainError] = {}

    def lost(self, ordinal: int, error: DomainError) -> None:
        self.failed[ordinal] = error
        self.members.pop(ordinal, None)

    async def each(self, ask: Callable[[FleetMember], Awaitable[T]], *, fatal: Collection[str] = ()) -> dict[int, T]:
        """Ask all at once. Who fails is lost, but for the error codes that are fatal: such an error is raised."""

        async def asked(member: FleetMember) -> T | None:
            try:
                return await ask(member)
            except DomainError as error:
                if error.code in fatal:
                    raise
                self.lost(member.ordinal, error)
                return None

        members = list(self.members.values())
        answers = await together(*(asked(member) for member in members))
        return {member.ordinal: answer for member, answer in zip(members, answers, strict=True) if answer is not None}

    def check_taken(self) -> None:
        """Raises NotTaken where a proxy that is lost did answer."""
        refusals = {ordinal: error for ordinal, error in self.failed.items() if error.code not in _NOT_REACHED}
        if refusals:
            raise NotTaken(refusals)

    def named(self, leader: int) -> dict[str, Any]:
        """The part of an answer that says which ordinals it covers."""
        failed = sorted(self.failed.items())
        return {
            "ordinals": sorted({leader, *self.members} - set(self.failed)),
            "failed": [{"ordinal": ordinal, "error": error, **error.beside} for ordinal, error in failed],
        }


@dataclass(eq=False, slots=True)
class FleetWeights:
    """Leads the steps that begin at this proxy. `members` are the others; none where it does a step alone."""

    own: WeightService
    ordinal: int
    engines: Engines
    clock: Callable[[], float]
    _engines_paused_in: int | None = field(init=False, default=None)
    _loading: tuple[LoadFromDisk, asyncio.Task[dict[str, Any]]] | None = field(init=False, default=None)
    """The load that was last begun here."""
    _commands: asyncio.Lock = field(init=False, default_factory=asyncio.Lock)
    """Held while engines are commanded under an epoch, and while the epoch changes: a newer pause tells every
        proxy before it tells the engines, so what an older one still does to them comes first."""

    async def show(self, members: Sequence[FleetMember]) -> dict[str, Any]:
        """The newest that is known, and what each proxy knows."""
        coverage = Coverage(members)
        known = await self._known(coverage)
        proxies = [{"ordinal": ordinal, **state.shown()} for ordinal, state in sorted(known.items())]
        return {**_newest(known.values()).shown(), **coverage.named(self.ordinal), "proxies": proxies}

    async def pause(
        self, members: Sequence[FleetMember], *, mode: PauseMode, timeout: float, epoch: int | None
    ) -> dict[str, Any]:
        """Return once nothing generates; in the modes that leave calls at the engines, once these confirmed.

        In wait mode the engines are paused last (retract): nothing of the fleet is there by then.
        Raises Stale where the epoch is taken or over, and StepRefused where it took longer than `timeout`, a proxy
        answered and did not pause, or the engines failed: the pause is then undone, and the body names those
        who did not pause, or could not be told to go on.
        """
        deadline = self.clock() + timeout
        known = [*(await self._known(Coverage(members))).values()]
        if epoch is None:
            epoch = weight_state.next_epoch(known)
        for state in known:
            weight_state.paused(state, epoch=epoch, mode=mode, now=0.0)
        coverage = Coverage(members)
        try:
            async with asyncio.timeout(deadline - self.clock()):
                await self._stop(coverage, epoch=epoch, mode=mode, deadline=deadline)
        except BaseException as error:
            refusals = error.refusals if isinstance(error, NotTaken) else {}
            undone, untold = await asyncio.shield(self._undo(Coverage(members), epoch, error, refusals=refusals))
            if isinstance(error, Stale):
                raise type(error)(error.message, {**undone, **error.beside}) from error
            if isinstance(error, DomainError | TimeoutError | NotTaken):
                raise _not_paused(error, timeout, undone, untold=untold) from error
            raise
        return self._answer(coverage)

    async def resume(self, members: Sequence[FleetMember], *, epoch: int | None) -> dict[str, Any]:
        """Engines go on, then proxies. Engines that did not confirm are named under `engines_failed`.

        Raises Stale for an older epoch, and DomainError where no engine confirmed; nothing has changed then.
        """
        known = [*(await self._known(Coverage(members))).values()]
        if epoch is None:
            epoch = max(state.gate.epoch for state in known)
        for state in known:
            weight_state.released(state, epoch=epoch, now=0.0)
        async with self._commands:
            weight_state.released(self.own.gate.state, epoch=epoch, now=0.0)
            failures = await self._resume_engines()
            await self.own.release(epoch=epoch)
        return _with_failures(await self._proxies_go_on(Coverage(members)), failures)

    async def advance(
        self, members: Sequence[FleetMember], *, version: int, epoch: int | None, flush_cache: bool | None = None
    ) -> dict[str, Any]:
        """Go to a version in the newest run that is known; `flush_cache` is that of `wire.SetVersion`. Raises Stale;
        nothing has changed then."""
        newest = _newest((await self._known(Coverage(members))).values())
        weight_state.advanced(newest, version=version, epoch=epoch)
        await self.own.join_versions(newest.versions)
        await self.own.advance(version, epoch=epoch, flush_cache=flush_cache)
        coverage = Coverage(members)
        await self._tell_versions(coverage)
        return self._answer(coverage)

    async def load(self, members: Sequence[FleetMember], asked: LoadFromDisk) -> dict[str, Any]:
        """Pause, load a checkpoint into every engine, set the version, continue.

        It goes on when its caller has gone. The same path and version meanwhile join it; asked again later with the
        epoch of one that is done, the answer says how things stand, and nothing is loaded.

        Raises Stale where version or epoch is older than what is known, EngineUnreachable where there is no engine,
        what `pause` raises (nothing is paused then), and LoadFailed: the fleet stays paused, and the body names
        engines that did not load.
        """
        loading, task = self._loading or (asked, None)
        same = (loading.path, loading.version) == (asked.path, asked.version)
        if task is None or task.done() or not same:
            task = asyncio.create_task(self._load(members, asked), name=f"load {asked.version}")
            task.add_done_callback(_log_failure)
            self._loading = asked, task
        return await asyncio.shield(task)

    async def _load(self, members: Sequence[FleetMember], asked: LoadFromDisk) -> dict[str, Any]:
        if not await self.engines.engines():
            raise errors.EngineUnreachable("The gateway knows of no engine that could load weights.")
        if await self._is_done(members, asked):
            return self._answer(Coverage(members))
        paused = await self.pause(members, mode=asked.mode, timeout=asked.timeout, epoch=asked.epoch)
        epoch = paused["epoch"]
        failures: dict[str, str] = {}
        try:
            failures = await self.engines.load(
                asked.path, asked.version, flush_cache=asked.flushes, timeout=asked.load_timeout
            )
            if failures:
                raise _unconfirmed(f"load {asked.path}", failures)
            told = await self.advance(members, version=asked.version, epoch=epoch, flush_cache=asked.flushes)
            answer = await self.resume(members, epoch=epoch)
        except DomainError as error:
            if await self._is_done(members, asked):
                # Another proxy was asked as well, and was faster.
                return self._answer(Coverage(members))
            if isinstance(error, Stale):
                raise
            message = f"{error.message} The fleet stays paused (epoch {epoch})."
            raise errors.LoadFailed(message, _with_failures(self._answer(Coverage(members)), failures)) from error
        missed = [each for each in told["failed"] if each["ordinal"] in answer["ordinals"]]
        answer["ordinals"] = [each for each in answer["ordinals"] if each in told["ordinals"]]
        return {**answer, "failed": [*answer["failed"], *missed]}

    async def _is_done(self, members: Sequence[FleetMember], asked: LoadFromDisk) -> bool:
        """Whether it has ended well already. Raises Stale where version or epoch is older than what is known."""
        newest = _newest((await self._known(Coverage(members))).values())
        weight_state.advanced(newest, version=asked.version, epoch=asked.epoch)
        return newest.gate.order == (asked.epoch, True) and newest.versions.version == asked.version

    async def recover(
        self, members: Sequence[FleetMember], recovery: Recovery, *, confirmed: bool = False
    ) -> dict[str, Any]:
        """Begin a new run; the answer counts what was marked and dropped where it covers.

        Raises Stale where the run is no greater, and RecoveryTooFar where it would drop something and is
        not confirmed; nothing has changed then.
        """
        newest = _newest((await self._known(Coverage(members))).values())
        weight_state.recovered(newest, recovery)
        if weight_state.too_far(newest, recovery) and not confirmed:
            await self._check_nothing_at_stake(Coverage(members), newest.versions, recovery)
        await self.own.join_versions(newest.versions)
        await self.own.recover(recovery)
        coverage = Coverage(members)
        await self._tell_versions(coverage)
        counted = await self._summed(coverage, lambda member: member.recovery_counts(recovery.run))
        for kind in ("trajectories", "turns"):
            counted[f"kept_{kind}"] = counted[f"marked_{kind}"] - counted[f"dropped_{kind}"]
        return {**self._answer(coverage), "recovered": counted}

    async def _check_nothing_at_stake(self, coverage: Coverage, known: Versions, recovery: Recovery) -> None:
        """Raises RecoveryTooFar. What nobody could count may be there, unless the fleet is a fresh one."""
        total = await self._summed(coverage, lambda member: member.at_stake(run=recovery.run, version=recovery.version))
        if any(total.values()) or (coverage.failed and known.version):
            raise _too_far(known, recovery, AtStake(**total), coverage.named(self.ordinal))

    async def _summed(
        self, coverage: Coverage, ask: Callable[[FleetMember | WeightService], Awaitable[AtStake | Counts]]
    ) -> dict[str, int]:
        """What this proxy and the others count, field by field."""
        counts = [asdict(each) for each in (await ask(self.own), *(await coverage.each(ask)).values())]
        return {name: sum(each[name] for each in counts) for name in counts[0]}

    async def heard(self, *, gate: Gate | None, versions: Versions | None) -> WeightState:
        """Take what a leading proxy tells; returns what is known then. Raises DomainError where engines fail."""
        if versions is not None:
            await self.own.join_versions(versions)
        if gate is not None:
            await self._heard_gate(gate)
        return self.own.gate.state

    async def _known(self, coverage: Coverage) -> dict[int, WeightState]:
        """What each proxy knows, by ordinal, this one's first."""
        return {self.ordinal: self.own.gate.state, **await coverage.each(lambda member: member.state())}

    async def _stop(self, coverage: Coverage, *, epoch: int, mode: PauseMode, deadline: float) -> None:
        async with self._commands:
            await self.own.hold(epoch=epoch, mode=mode)
        await self._tell_pause(coverage)
        if mode == "wait":
            await self._settle(coverage, epoch, deadline)
            # Nothing of the fleet is there any more; what somebody else runs is held, not cut.
            await self._pause_engines(epoch, "retract")
        else:
            await self._pause_engines(epoch, mode)
            await self._settle(coverage, epoch, deadline)

    async def _tell_pause(self, coverage: Coverage) -> None:
        gate = self.own.gate.state.gate
        for state in (await coverage.each(lambda member: member.join(gate=gate))).values():
            if (state.gate.order, state.gate.mode) != (gate.order, gate.mode):
                raise weight_state.stale_epoch(gate.epoch, state.gate)
        coverage.check_taken()

    async def _settle(self, coverage: Coverage, epoch: int, deadline: float) -> None:
        """Wait for all. Who is lost meanwhile is named; who is not done in time ends the pause."""
        left = deadline - self.clock()
        await together(
            self.own.gate.settled(epoch=epoch, timeout=left),
            coverage.each(
                lambda member: member.settled(epoch=epoch, timeout=left), fatal=(codes.PAUSE_TIMEOUT, codes.EPOCH_STALE)
            ),
        )
        coverage.check_taken()

    async def _pause_engines(self, epoch: int, mode: EnginePause) -> None:
        async with self._commands:
            gate = self.own.gate.state.gate
            if gate.order != (epoch, False):
                raise weight_state.stale_epoch(epoch, gate)
            self._engines_paused_in = epoch
            failed = await self.engines.pause(mode)
            if failed:
                raise _unconfirmed("be paused", failed)

    async def _heard_gate(self, gate: Gate) -> None:
        async with self._commands:
            mine = self._engines_paused_in
            if (
                not gate.paused
                and mine is not None
                and mine <= gate.epoch
                and gate.order > self.own.gate.state.gate.order
            ):
                # Whoever continues may have told the engines before this proxy, then still pausing them, did.
                await self._resume_engines()
            await self.own.join_gate(gate)

    async def _resume_engines(self) -> dict[str, str]:
        try:
            async with asyncio.timeout(ENGINE_TIMEOUT):
                failures = await self.engines.resume()
                if failures and len(failures) == len(await self.engines.engines()):
                    raise _unconfirmed("go on", failures)
        except TimeoutError:
            raise errors.EngineTimeout(
                f"The engines did not confirm within {ENGINE_TIMEOUT:g} s that they go on."
            ) from None
        self._engines_paused_in = None
        return failures

    async def _proxies_go_on(self, coverage: Coverage) -> dict[str, Any]:
        gate = self.own.gate.state.gate
        for ordinal, state in (await coverage.each(lambda member: member.join(gate=gate))).items():
            if state.gate.order != gate.order:
                coverage.lost(ordinal, weight_state.stale_epoch(gate.epoch, state.gate))
        return self._answer(coverage)

    async def _undo(
        self, coverage: Coverage, epoch: int, why: BaseException, *, refusals: dict[int, DomainError]
    ) -> tuple[dict[str, Any], bool]:
        """Engines and proxies go on, each as far as it can be told; returns how things stand then, and whether somebody
        could not be told.

        Those that refused the pause are named as having done so, whatever they answer now.
        """
        async with self._commands:
            gate = self.own.gate.state.gate
            kept = (gate.paused and gate.epoch > epoch) or _newer_pause(epoch, why)
            failures = {} if kept else await self._engines_going_on()
            try:
                await self.own.release(epoch=epoch)
            except Stale:
                pass
            except DomainError as error:
                coverage.lost(self.ordinal, error)
            except StoreClosed as error:
                coverage.lost(self.ordinal, errors.DiskFailed(str(error)))
        over = Gate(epoch=epoch, since=self.own.gate.state.gate.since)
        await coverage.each(lambda member: member.join(gate=over))
        untold = bool(coverage.failed.keys() - refusals.keys() or failures)
        coverage.failed |= refusals
        return _with_failures(self._answer(coverage), failures), untold

    async def _engines_going_on(self) -> dict[str, str]:
        try:
            return await self._resume_engines()
        except DomainError as error:
            return {"*": error.message}

    async def _tell_versions(self, coverage: Coverage) -> None:
        versions = self.own.gate.state.versions
        for ordinal, state in (await coverage.each(lambda member: member.join(versions=versions))).items():
            if (state.versions.run, state.versions.version) != (versions.run, versions.version):
                coverage.lost(ordinal, weight_state.stale_version(versions.version, state.versions))

    def _answer(self, coverage: Coverage) -> dict[str, Any]:
        return {**self.own.gate.figures(), **coverage.named(self.ordinal)}


async def together(*work: Coroutine[Any, Any, Any]) -> list[Any]:
    """Run all at once; the first error ends the rest and is raised as it is."""
    tasks = [asyncio.create_task(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _with_failures(answer: dict[str, Any], failures: dict[str, str]) -> dict[str, Any]:
    return {**answer, "engines_failed": failures} if failures else answer


def _unconfirmed(what: str, failed: dict[str, str]) -> DomainError:
    engines = "; ".join(f"{url}: {why}" for url, why in failed.items())
    return errors.EngineError(f"Not every engine confirmed that it would {what} ({engines}).")


def _not_paused(
    why: DomainError | TimeoutError | NotTaken, timeout: float, stands: dict[str, Any], *, untold: bool
) -> errors.StepRefused:
    undone = "It was undone as far as can be seen" if untold else "It was undone"
    if isinstance(why, NotTaken):
        each = "; ".join(f"proxy {ordinal}: {error.message}" for ordinal, error in sorted(why.refusals.items()))
        message = f"Not every proxy that answered paused ({each}). {undone}: the fleet is not paused."
        return errors.PauseTimeout(message, stands)
    if isinstance(why, TimeoutError) or why.code == codes.PAUSE_TIMEOUT:
        message = f"Something still generates after {timeout:g} s. {undone}: the fleet is not paused."
        return errors.PauseTimeout(message, stands)
    return errors.PauseFailed(why, f"{why.message} {undone}: the fleet is not paused.", stands)


def _too_far(known: Versions, recovery: Recovery, at_stake: AtStake, coverage: dict[str, Any]) -> errors.StepRefused:
    message = (
        f"The fleet is at version {known.version}, and dropping what is newer than {recovery.version} would discard "
        f"{at_stake.trajectories} trajectories: {at_stake.ready} ready, {at_stake.leased} leased, {at_stake.open} "
        "still open"
    )
    if coverage["failed"]:
        silent = ", ".join(str(one["ordinal"]) for one in coverage["failed"])
        message += f", and what is at proxies that do not answer ({silent})"
    message += '. Nothing was changed. If that is intended, send "confirm": true; else name the checkpoint\'s version.'
    stands = {"run": known.run, "version": known.version, "would_drop": asdict(at_stake), **coverage}
    return errors.RecoveryTooFar(message, stands)


def _log_failure(load: asyncio.Task[dict[str, Any]]) -> None:
    """Its callers may have gone."""
    if not load.cancelled() and load.exception() is not None:
        logger.warning("%s: %s", load.get_name(), load.exception())


def _newer_pause(epoch: int, why: BaseException) -> bool:
    """Whether what ended this pause is one that has the engines now."""
    return isinstance(why, Stale) and bool(why.beside.get("paused")) and why.beside["epoch"] > epoch


def _newest(states: Iterable[WeightState]) -> WeightState:
    return functools.reduce(weight_state.joined, states)
