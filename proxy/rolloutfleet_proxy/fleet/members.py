"""Other proxies as members of a fleet's steps, over HTTP. The paths are between proxies; users have no need of them."""

from collections.abc import Mapping
from typing import Any, Final

from rolloutfleet_proxy.domain.errors import DomainError, OwnerUnavailable
from rolloutfleet_proxy.fleet.peers import Peers
from rolloutfleet_proxy.turns.lineage import Counts
from rolloutfleet_proxy.weights.recovery import AtStake
from rolloutfleet_proxy.weights.state import Gate, Versions, WeightState

STATE_PATH: Final = "/peers/weights"
JOIN_PATH: Final = "/peers/weights/join"
SETTLED_PATH: Final = "/peers/weights/settled"
RECOVERED_PATH: Final = "/peers/weights/recovered"
AT_STAKE_PATH: Final = "/peers/weights/at-stake"

PATIENCE: Final = 5.0
"""Seconds for an answer; long enough for a proxy that is being restarted in place."""


class RemoteMember:
    """Another proxy. `credentials` are the caller's own headers, which every proxy takes alike."""

    def __init__(self, peers: Peers, ordinal: int, *, credentials: Mapping[str, str]) -> None:
        self._peers = peers
        self._ordinal = ordinal
        self._credentials = credentials

    @property
    def ordinal(self) -> int:
        return self._ordinal

    async def state(self) -> WeightState:
        return self._state(await self._ask("GET", STATE_PATH))

    async def join(self, *, gate: Gate | None = None, versions: Versions | None = None) -> WeightState:
        told = WeightState(gate=gate or Gate(), versions=versions or Versions())
        return self._state(await self._ask("POST", JOIN_PATH, told.as_json()))

    async def settled(self, *, epoch: int, timeout: float) -> None:
        await self._ask("POST", SETTLED_PATH, {"epoch": epoch, "timeout": timeout}, patience=timeout + PATIENCE)

    async def at_stake(self, *, run: int, version: int) -> AtStake:
        answer = await self._ask("GET", f"{AT_STAKE_PATH}?run={run}&version={version}")
        try:
            return AtStake(**answer)
        except TypeError:
            raise self._not_understood() from None

    async def recovery_counts(self, run: int) -> Counts:
        answer = await self._ask("GET", f"{RECOVERED_PATH}?run={run}")
        try:
            return Counts(**answer)
        except TypeError:
            raise self._not_understood() from None

    async def _ask(self, method: str, path: str, content: Any = None, *, patience: float = PATIENCE) -> Any:
        return await self._peers.ask(
            self._ordinal, method, path, headers=self._credentials, content=content, patience=patience
        )

    def _state(self, answer: Any) -> WeightState:
        try:
            return WeightState.from_json(answer)
        except (LookupError, TypeError, ValueError):
            raise self._not_understood() from None

    def _not_understood(self) -> DomainError:
        return OwnerUnavailable(self._ordinal, "its answer is not understood")
