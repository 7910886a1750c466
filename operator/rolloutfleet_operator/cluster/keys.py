"""The keys of a fleet: its admin keys, made and rotated where they are its own, those of gateways and of engines.

Secrets are read by name, and never listed.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Generic, TypeVar

from rolloutfleet_operator.cluster.api import Api, ApiRefused, Object
from rolloutfleet_operator.cluster.apply import name_taken, owned, refusal
from rolloutfleet_operator.cluster.children import secret as secrets
from rolloutfleet_operator.cluster.children.key_files import CONTROL_KEY, ENGINE_KEY, control_key_secret
from rolloutfleet_operator.cluster.children.names import KEYS_FILE, Fleet
from rolloutfleet_operator.cluster.proxy_client import ProxyClient
from rolloutfleet_operator.policy.reasons import Problem, ProblemReason

K = TypeVar("K")


@dataclass(frozen=True, slots=True)
class Usable(Generic[K]):
    key: K | None
    """None where there is none that can be used."""
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class KeyMaker:
    api: Api
    proxies: ProxyClient
    new_key: Callable[[], str] = secrets.new_key

    async def keys(
        self, fleet: Fleet, there: Object | None, proxies: Sequence[str | None], now: float
    ) -> Usable[secrets.Keys]:
        """The admin keys as they should be now; `there` is the Secret, `proxies` has an address for each pod."""
        found = None if there is None else secrets.read(there)
        if fleet.spec.auth.secret is not None:
            return Usable(found, () if found is not None else (_no_keys(fleet),))
        if there is not None and not owned(there, fleet):
            return Usable(None, (name_taken("Secret", fleet.own_keys, "delete it, or name it as auth.secret"),))
        wanted = secrets.wanted(
            fleet,
            found,
            taken=found is not None and await self._taken(found, proxies),
            now=datetime.fromtimestamp(now, UTC),
            fresh=self.new_key(),
        )
        if wanted != found:
            try:
                await self.api.apply(secrets.secret(fleet, wanted))
            except ApiRefused as refused:
                return Usable(found, (refusal("Secret", fleet.own_keys, refused),))
        return Usable(wanted)

    async def control_key(self, fleet: Fleet) -> Usable[str]:
        """The key of the gateways' control plane, made where there is none."""
        there = await self.api.get("Secret", fleet.namespace, fleet.control_key)
        if there is not None and not owned(there, fleet):
            return Usable(None, (name_taken("Secret", fleet.control_key, "delete it"),))
        found = CONTROL_KEY.read(there)
        if found is not None:
            return Usable(found)
        made = self.new_key()
        try:
            await self.api.apply(control_key_secret(fleet, made))
        except ApiRefused as refused:
            return Usable(None, (refusal("Secret", fleet.control_key, refused),))
        return Usable(made)

    async def engine_key(self, fleet: Fleet) -> str | None:
        """What gateway and engines ask for; None where they ask for none, or where it can't be read."""
        name = fleet.spec.gateway.api_key_secret
        found = None if name is None else await self.api.get("Secret", fleet.namespace, name)
        return ENGINE_KEY.read(found)

    async def _taken(self, keys: secrets.Keys, proxies: Sequence[str | None]) -> bool:
        """Whether every proxy takes the newest key, where there are two and that one does not stand first."""
        if len(keys.keys) < 2 or keys.leading_since is not None:
            return False
        asked = [self.proxies.takes(url, keys.newest) for url in proxies if url is not None]
        answers = await asyncio.gather(*asked)
        return len(answers) == len(proxies) and all(answers)


def _no_keys(fleet: Fleet) -> Problem:
    lacking = f"which is not there or has no key `{KEYS_FILE}` (admin keys, one a line)"
    return Problem(ProblemReason.KEYS_MISSING, f"auth.secret names the Secret {fleet.spec.auth.secret}, {lacking}")
