"""Pauses, versions and recovery over the whole fleet.

The proxy that gets a call leads it (docs/weights.md). Each call names its epoch, version or run, so it may be made
again, at another leader if the first one dies in the middle. Proxies that the leader could not reach are led from
themselves, if they answer here. One that is down learns all of it from the others when it starts; one that hangs is
named in the answer, and told again in the background.

`async with fleet.weight_update(…)`: paused before the block, the new version and on after it. `load` is a whole update
that the leading proxy makes.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final, Self

from pydantic import BaseModel

from rolloutfleet.errors import EPOCH_STALE, LOAD_FAILED, VERSION_BACKWARDS
from rolloutfleet.fleet.exceptions import (
    BadArgument,
    Conflict,
    FleetError,
    NotEverywhere,
    NotHeardYet,
    Refused,
    StillPaused,
    Unreachable,
)
from rolloutfleet.fleet.proxies import ANSWER_TIMEOUT, FLEET, Proxies
from rolloutfleet.fleet.transport import read_answer
from rolloutfleet.fleet.waiting import Waiting
from rolloutfleet.wire import Continue, ErrorDetail, Failed, LoadFromDisk, Pause, Recover, SetVersion, Weights

log = logging.getLogger("rolloutfleet.fleet")

MARGIN: Final = 30.0
"""Seconds that an answer may take beyond the pause's own time."""
STRAGGLERS: Final = 5.0
"""Seconds that proxies get that run and were not reached at once."""
AGAIN_AFTER: Final = 0.25
_PAUSE: Final = "/pause"


@dataclass(frozen=True, slots=True)
class _Call:
    """What all proxies are told."""

    what: str
    """As a person would say it."""
    method: str
    path: str
    body: BaseModel
    timeout: float = ANSWER_TIMEOUT


class FleetWeights:
    """Where the weights are, and what moves them. One event loop's."""

    def __init__(self, proxies: Proxies, waiting: Waiting) -> None:
        self.changed: Callable[[], None] = lambda: None
        """Told when run or version are others."""
        self._newest: tuple[int, int] | None = None
        """(run, version); None until a proxy has said where the weights are."""
        self._proxies = proxies
        self._waiting = waiting
        self._behind: dict[int, dict[str, _Call]] = {}
        """Calls that proxies missed and that are still to be made, by ordinal and path."""

    @property
    def newest(self) -> tuple[int, int]:
        """(run, version). Raises NotHeardYet."""
        if self._newest is None:
            raise NotHeardYet("no proxy has said yet where the weights are; fleet.weights() asks")
        return self._newest

    @property
    def version(self) -> int:
        """Raises NotHeardYet."""
        return self.newest[1]

    async def learn(self) -> None:
        """Ask for run and version, where no proxy has said them yet. Raises Unreachable, Refused."""
        if self._newest is None:
            await self.show()

    async def show(self) -> Weights:
        """The newest run, version, epoch and pause that any proxy knows of."""
        found = await self._proxies.call("GET", "/version", Weights, query=FLEET)
        self.heard(found.run, found.version)
        return found

    def heard(self, run: int, version: int) -> None:
        """A proxy said where the weights are; what is older than what is known changes nothing."""
        if self._newest is None or (run, version) > self._newest:
            self._newest = (run, version)
            self.changed()

    async def set_version(self, asked: SetVersion, *, strict: bool) -> Weights:
        return await self._everywhere(_Call("the version", "PUT", "/version", asked), strict=strict)

    async def pause(self, asked: Pause, *, strict: bool) -> Weights:
        """With an epoch always, so that the call can be made again without being another pause.

        Where it is broken off, or fails after some proxies have paused, they are told to go on.
        """
        epoch = asked.epoch if asked.epoch is not None else (await self.show()).epoch + 1
        body = asked.model_copy(update={"epoch": epoch})
        call = _Call("the pause", "POST", _PAUSE, body, asked.timeout + MARGIN)
        broken_off, end = "the end of a pause that was broken off", partial(self.resume, epoch=epoch, strict=False)
        try:
            answer = await self._lead(call)
            try:
                return await self._reach_the_rest(call, answer, strict=strict)
            except FleetError:
                with suppress(Refused):  # a newer pause, or none to end
                    await self._proxies.outbox.deliver(broken_off, end)
                raise
        except asyncio.CancelledError:
            self._proxies.outbox.add(broken_off, end, quietly=True)
            raise

    async def resume(self, *, epoch: int | None, strict: bool) -> Weights:
        if epoch is None:
            epoch = (await self.show()).epoch
        call = _Call("the end of the pause", "POST", "/continue", Continue(epoch=epoch))
        answer = await self._everywhere(call, strict=strict)
        until = self._proxies.clock() + STRAGGLERS
        while answer.engines_failed and self._proxies.clock() < until:
            await asyncio.sleep(AGAIN_AFTER)
            answer = await self._lead(call)
        if answer.engines_failed:
            log.warning("engines did not confirm that they go on: %s", answer.engines_failed)
        return answer

    async def load(self, asked: LoadFromDisk, *, strict: bool) -> Weights:
        """With an epoch of its own, so that the call can be made again and is the same update."""
        known = await self.show()
        _check_forward(asked.version, known)
        epoch, timeout = known.epoch + 1, asked.timeout + asked.load_timeout + 2 * MARGIN
        asked = asked.model_copy(update={"epoch": epoch})
        try:
            answer = await self._lead(_Call("the weights", "POST", "/load-from-disk", asked, timeout))
            self.heard(answer.run, answer.version)
        except Unreachable as error:
            raise StillPaused(
                f"the fleet may be paused (epoch {epoch}): nobody said how the load of version {asked.version} ended: "
                f"{error}",
                epoch=epoch,
            ) from error
        except Refused as error:
            if error.code != LOAD_FAILED:
                raise
            raise StillPaused(f"version {asked.version} was not loaded: {error.said}", epoch=epoch) from error
        if answer.failed:
            await self.set_version(SetVersion(version=asked.version, epoch=answer.epoch), strict=strict)
        if answer.failed or answer.engines_failed:
            answer = await self.resume(epoch=answer.epoch, strict=strict)
        return answer

    async def recover(self, asked: Recover, *, strict: bool) -> Weights:
        return await self._everywhere(_Call("the recovery", "POST", "/recover", asked), strict=strict)

    async def _everywhere(self, call: _Call, *, strict: bool) -> Weights:
        return await self._reach_the_rest(call, await self._lead(call), strict=strict)

    async def _reach_the_rest(self, call: _Call, answer: Weights, *, strict: bool) -> Weights:
        """Make the call again until it has reached every proxy that runs, or their time is up."""
        with self._waiting.line(call.what) as tell:
            covered = set(answer.ordinals)
            failed = {each.ordinal: each for each in answer.failed}
            until = self._proxies.clock() + STRAGGLERS
            while running := await self._running(failed):
                tell(f"{call.what}: waiting for proxies {', '.join(map(str, sorted(failed)))}", 0)
                again = await self._led_by(running[0], call)
                if isinstance(again, Failed):
                    failed[again.ordinal] = again
                else:
                    covered |= set(again.ordinals)
                    failed = {ordinal: each for ordinal, each in failed.items() if ordinal not in covered}
                if self._proxies.clock() >= until:
                    break
                if failed:
                    await asyncio.sleep(AGAIN_AFTER)
        self.heard(answer.run, answer.version)
        self._report(call, failed, strict=strict)
        return answer.model_copy(
            update={"ordinals": sorted(covered), "failed": [failed[each] for each in sorted(failed)]}
        )

    async def _lead(self, call: _Call) -> Weights:
        with self._waiting.line(call.what) as tell:
            tell(f"{call.what}: asking", 0)
            return await self._proxies.call(
                call.method, call.path, Weights, body=call.body, query=FLEET, timeout=call.timeout
            )

    async def _led_by(self, ordinal: int, call: _Call) -> Weights | Failed:
        """The answer of this proxy, or why it gave none.

        Raises Refused where that concerns more than this proxy: the epoch or version is over, or it undid the pause.
        """
        try:
            answer = await self._proxies.ask(
                ordinal, call.method, call.path, body=call.body, query=FLEET, timeout=call.timeout
            )
            return read_answer(answer, Weights)
        except Refused as error:
            if call.path == _PAUSE or error.code in (EPOCH_STALE, VERSION_BACKWARDS):
                raise
            return _failed(ordinal, error.said, error.code)
        except FleetError as error:
            return _failed(ordinal, str(error))

    async def _running(self, failed: dict[int, Failed]) -> list[int]:
        """Those of the proxies that were not reached that do run, as far as can be seen from here."""
        found = []
        for ordinal in sorted(failed):
            with suppress(FleetError):
                await self._proxies.refresh(now=True)
                await self._proxies.check(ordinal)
                found.append(ordinal)
        return found

    def _report(self, call: _Call, failed: dict[int, Failed], *, strict: bool) -> None:
        if not failed:
            return
        error = NotEverywhere(call.what, {ordinal: each.error.message for ordinal, each in failed.items()})
        known = self._behind.keys() >= failed.keys()
        if call.path != _PAUSE:
            # The end of the pause, or the next one, tells more than a pause would.
            for ordinal in failed:
                self._tell_later(ordinal, call)
        if strict:
            raise error
        log.log(logging.DEBUG if known else logging.WARNING, "%s", error)

    def _tell_later(self, ordinal: int, call: _Call) -> None:
        """The newest call of each kind is made again, once the proxy answers."""
        new = ordinal not in self._behind
        calls = self._behind.setdefault(ordinal, {})
        calls.pop(call.path, None)
        calls[call.path] = call
        if new:
            self._proxies.outbox.add(f"what proxy {ordinal} missed of the weights", partial(self._catch_up, ordinal))

    async def _catch_up(self, ordinal: int) -> None:
        calls = self._behind[ordinal]
        while calls and ordinal in self._proxies.known:
            call = next(iter(calls.values()))
            try:
                await self._proxies.ask(ordinal, call.method, call.path, body=call.body, query=FLEET)
            except Conflict:
                # It knows of something newer.
                pass
            except Refused as error:
                raise Unreachable(str(error)) from error
            if calls.get(call.path) == call:
                del calls[call.path]
        del self._behind[ordinal]


def _check_forward(version: int, known: Weights) -> None:
    """Raises BadArgument."""
    if version < known.version:
        raise BadArgument(
            "version", f"{version} would go back: the fleet is at {known.version}. After a crash call recover()"
        )


def _failed(ordinal: int, why: str, code: str | None = None) -> Failed:
    return Failed(ordinal=ordinal, error=ErrorDetail(message=why, type="server_error", code=code))


@dataclass
class AsyncWeightUpdate:
    """The whole of an update; see AsyncFleet.weight_update."""

    asked: SetVersion
    _weights: FleetWeights
    _pause: Pause
    _strict: bool
    epoch: int | None = None
    """The pause's, once there is one."""
    paused: Weights | None = None
    """What the pause answered; `failed` names proxies that it did not reach."""

    @property
    def version(self) -> int:
        """The version that the engines get."""
        return self.asked.version

    async def __aenter__(self) -> Self:
        known = await self._weights.show()
        _check_forward(self.version, known)
        asked = self._pause.model_copy(update={"epoch": known.epoch + 1})
        self.paused = await self._weights.pause(asked, strict=self._strict)
        self.epoch = self.paused.epoch
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        epoch = self.epoch
        assert epoch is not None
        if error is not None:
            text = f"the fleet stays paused (epoch {epoch}), because the weight update to {self.version} failed"
            log.error("%s: %r", text, error)
            error.add_note(f"{text}. Once the engines are right: set_version(), then resume()")
            return
        try:
            await self._weights.set_version(self.asked.model_copy(update={"epoch": epoch}), strict=self._strict)
        except FleetError as problem:
            raise StillPaused(
                f"the fleet stays paused (epoch {epoch}): version {self.version} could not be set: {problem}",
                epoch=epoch,
            ) from problem
        try:
            await self._weights.resume(epoch=epoch, strict=self._strict)
        except FleetError as problem:
            raise StillPaused(
                f"the fleet may still be paused (epoch {epoch}), at version {self.version}: {problem}", epoch=epoch
            ) from problem
