"""`async with fleet.weight_update(…)`: paused before the block, the new version and on after it."""

import logging
from types import TracebackType
from typing import TYPE_CHECKING, Self

from rolloutfleet.fleet.exceptions import BadArgument, FleetError, StillPaused
from rolloutfleet.wire import PauseMode, Weights

if TYPE_CHECKING:
    from rolloutfleet.fleet.async_fleet import AsyncFleet

log = logging.getLogger("rolloutfleet.fleet")


class AsyncWeightUpdate:
    """The whole of an update; see AsyncFleet.weight_update."""

    def __init__(self, fleet: "AsyncFleet", version: int, *, mode: PauseMode, timeout: float, strict: bool) -> None:
        self.version = version
        self.epoch: int | None = None
        """The pause's, once there is one."""
        self.paused: Weights | None = None
        """What the pause answered; `failed` names proxies that it did not reach."""
        self._fleet = fleet
        self._mode: PauseMode = mode
        self._timeout = timeout
        self._strict = strict

    async def __aenter__(self) -> Self:
        known = await self._fleet.weights()
        if self.version < known.version:
            raise BadArgument(
                "version", f"{self.version} would go back: the fleet is at {known.version}. After a crash say recover()"
            )
        self.paused = await self._fleet.pause(
            self._mode, timeout=self._timeout, epoch=known.epoch + 1, strict=self._strict
        )
        self.epoch = self.paused.epoch
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        epoch = self.epoch
        assert epoch is not None
        if error is not None:
            text = f"the fleet stays paused (epoch {epoch}), because the weight update to {self.version} failed"
            log.error("%s: %r", text, error)
            error.add_note(f"{text}. Once the engines are right: set_version(), then resume()")
            return
        try:
            await self._fleet.set_version(self.version, epoch=epoch, strict=self._strict)
        except FleetError as problem:
            raise StillPaused(
                f"the fleet stays paused (epoch {epoch}): version {self.version} could not be set: {problem}",
                epoch=epoch,
            ) from problem
        try:
            await self._fleet.resume(epoch=epoch, strict=self._strict)
        except FleetError as problem:
            raise StillPaused(
                f"the fleet may still be paused (epoch {epoch}), at version {self.version}: {problem}", epoch=epoch
            ) from problem
